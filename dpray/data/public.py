"""Public data beside the private ones: which records everybody may see, and that no other is.

`choose_words` writes out in full what a run reads, so that its specification says it; `with_public`
loads it. A built-in dataset is public as a whole, so it may be cut by default. Of the user's own
data nothing is public but what the user names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch

from dpray.data.datasets import BUILT_IN, load_whole
from dpray.data.fetch import to_stderr
from dpray.data.records import Dataset, Images, PublicData, TrainingData
from dpray.data.sources import Say
from dpray.data.words import (
    DatasetWord,
    parse_classes,
    refuse_unknown_classes,
    restrict_training,
)
from dpray.errors import BadInput

# classes: some classes are public, the others private. labelling: a part of every class is public.
Cut = Literal["classes", "labelling"]

_FEWEST_CLASSES = 4  # to be cut by default: two on either side
_CLASS_LIST = re.compile(r"[\d,\s]+", re.ASCII)


def choose_words(dataset: str, public: str | None, how: Cut) -> tuple[str, str]:
    """(dataset word, public word) of a run. `public` is what the user said: nothing, a class list
    such as 1,3,5, or a dataset word. Words that were chosen before come out as they are.
    """
    private = DatasetWord.parse(dataset)
    if public is None:
        words = _odd_classes(private) if how == "classes" else _labelling_part(private)
    elif _CLASS_LIST.fullmatch(public):
        words = _listed_classes(private, parse_classes(public))
    else:
        words = private, DatasetWord.parse(public)
    return str(words[0]), str(words[1])


def with_public(
    dataset: Dataset, dataset_word: str, public_word: str, say: Say = to_stderr
) -> Dataset:
    """`dataset` with the training records of `public_word` beside its own.

    Guarantee: no record is private and public at once. Within one dataset ids decide, and between
    two no image may be in both. Images that were changed in between, the user answers for.
    """
    private, public = DatasetWord.parse(dataset_word), DatasetWord.parse(public_word)
    own = dataset.train
    whole = load_whole(public.base, say=say).train
    found = restrict_training(whole, public)
    if found.shape != own.shape:
        raise BadInput(
            f"the images of {found.name} have shape {found.shape} (channels, height, width) and "
            f"those of {own.name} {own.shape}; choose public data of the same shape"
        )
    if public.base == private.base:
        _refuse_shared(own, found.private, found.name)
    else:
        _refuse_shared_images(own, found.private, found.name)
    labelling = None
    if private.part == "rest":
        labelling_word = replace(private, part="labelling", tuning=False)
        if labelling_word == public:
            labelling = found.private
        elif _is_built_in(private):
            if public.base != private.base:
                whole = load_whole(private.base, say=say).train
            labelling = restrict_training(whole, labelling_word).private
            _refuse_shared(own, labelling, str(labelling_word))
    beside = PublicData(
        name=found.name,
        images=found.private,
        class_names=found.class_names,
        fingerprint=found.fingerprint,
        labelling=labelling,
    )
    return replace(dataset, train=replace(own, public=beside))


def _odd_classes(private: DatasetWord) -> tuple[DatasetWord, DatasetWord]:
    """Classes at odd places are public; where some were named, the others are."""
    if not _is_built_in(private):
        raise BadInput(
            f"{private} is your own data: say which classes everybody may see, as in --public 1,3, "
            "or name other data, as in --public mnist"
        )
    every = range(len(_class_names(private)))
    if private.classes is not None:
        others = tuple(number for number in every if number not in private.classes)
        if not others:
            raise BadInput(
                f"{private} names all {len(every)} classes and leaves none to be public; name "
                "fewer, or name other data, as in --public fashion-mnist"
            )
        return private, replace(private, classes=others)
    if len(every) < _FEWEST_CLASSES:
        raise BadInput(
            f"{private} has {len(every)} classes, and fewer than {_FEWEST_CLASSES} are not cut "
            "into private and public ones; name public data of the same shape with --public"
        )
    cut = replace(private, part=private.part or "rest")
    return replace(cut, classes=tuple(every[::2])), replace(cut, classes=tuple(every[1::2]))


def _listed_classes(
    private: DatasetWord, public: tuple[int, ...]
) -> tuple[DatasetWord, DatasetWord]:
    """These classes are public. Of a built-in dataset the labelling part is set aside as well."""
    names = _class_names(private)
    refuse_unknown_classes(public, names, private.base)
    named = range(len(names)) if private.classes is None else private.classes
    remaining = tuple(number for number in named if number not in public)
    if not remaining:
        listed = ",".join(map(str, public))
        raise BadInput(f"--public {listed} leaves no class of {private} private; name fewer")
    part = private.part
    if part is None and _is_built_in(private):
        part = "rest"
    cut = replace(private, part=part)
    return replace(cut, classes=remaining), replace(cut, classes=public)


def _labelling_part(private: DatasetWord) -> tuple[DatasetWord, DatasetWord]:
    """A third of the records is public; of one's own data only where it is named."""
    if private.part == "labelling":
        raise BadInput(
            f"{private} is the part that is public by default; write @rest or no part, or name "
            "public data with --public"
        )
    if not _is_built_in(private):
        rest, third = replace(private, part="rest"), replace(private, part="labelling")
        raise BadInput(
            f"{private} is your own data: to declare a third of it public write --dataset {rest} "
            f"--public {third}, or name other data, as in --public mnist"
        )
    return replace(private, part="rest"), replace(private, part="labelling")


def _is_built_in(word: DatasetWord) -> bool:
    return word.base in BUILT_IN


def _class_names(word: DatasetWord) -> tuple[str, ...]:
    if word.base in BUILT_IN:
        return BUILT_IN[word.base].class_names
    return load_whole(word.base).train.class_names


def _refuse_shared(private: TrainingData, public: Images, name: str) -> None:
    if bool(torch.isin(public.ids, private.private.ids).any()):
        raise BadInput(
            f"{name} and {private.name} share records, and what is public cannot be private; name "
            "other classes, or the parts @labelling and @rest"
        )


def _refuse_shared_images(private: TrainingData, public: Images, name: str) -> None:
    """Of two datasets: an id says nothing there, so the images are compared."""
    known = set(_digests(public))
    if any(digest in known for digest in _digests(private.private)):
        raise BadInput(
            f"{name} and {private.name} share images, and what is public cannot be private; name "
            "other data, or one dataset with classes or parts, as in mnist:0,2"
        )


def _digests(images: Images) -> Iterator[bytes]:
    for row in images.pixels.flatten(1).contiguous().numpy():
        yield hashlib.blake2b(row.data, digest_size=16).digest()
