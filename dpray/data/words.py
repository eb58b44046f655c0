"""Dataset words: `NAME[:CLASSES][@PART]`, as in `mnist:0,2,4,6,8@rest`.

NAME is a built-in dataset or a path, CLASSES are places in its class list, and PART is one side of
a fixed cut of the training records by a keyed hash of their ids. A path that exists under the
whole text is that path, whatever it is called. Last of all may stand `@tuning`, as in
`mnist@rest@tuning`: a tenth of the training records then takes the place of the test set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from dpray.data.records import Dataset, Images, TrainingData
from dpray.data.splits import is_held_out
from dpray.errors import BadInput, unknown

Part = Literal["labelling", "rest"]
PARTS: tuple[Part, ...] = get_args(Part)
TUNING = "tuning"

LABELLING = 1 / 3
LABELLING_SALT = "dpray/labelling"
VALIDATION = 0.1  # of the training records: what settings are compared on
VALIDATION_SALT = "dpray/validation"
_TUNING_NOTE = (
    "tuning: the test set is out of reach; about a tenth of the training records, by record id, is "
    "held out to score on and is as private as the rest"
)

# What stands behind the last @ or : is part of a path where it could be one.
_PART = re.compile(r"(.*)@([^@:/\\.]*)", re.DOTALL)
_CLASSES = re.compile(r"(.*):([^@:/\\.]*)", re.DOTALL)
_LARGEST_CLASS = 10**9
_LONGEST_NAME = 100  # characters: names of files and of models are bounded


@dataclass(frozen=True)
class DatasetWord:
    base: str
    classes: tuple[int, ...] | None = None  # None: all of them
    part: Part | None = None  # None: all training records
    tuning: bool = False  # whether a validation tenth of these takes the place of the test set

    @classmethod
    def parse(cls, text: str) -> DatasetWord:
        if _exists(text):
            return cls(text)
        base, part, tuning = text, None, False
        if (found := _PART.fullmatch(text)) and found[2] == TUNING:
            base, tuning = found[1], True
        if not _exists(base) and (found := _PART.fullmatch(base)):
            base, part = found[1], _part(found[2], tuning)
        classes = None
        if not _exists(base) and (found := _CLASSES.fullmatch(base)):
            base, classes = found[1], parse_classes(found[2])
        if not base and text:
            raise BadInput(f"{text!r} names no dataset before its classes or part; give mnist:0,2")
        return cls(base, classes, part, tuning)

    def __str__(self) -> str:
        return self.base + self.selection

    @property
    def selection(self) -> str:
        """What stands behind the name; empty where the word means all of a dataset."""
        classes = "" if self.classes is None else f":{','.join(map(str, self.classes))}"
        part = "" if self.part is None else f"@{self.part}"
        return classes + part + (f"@{TUNING}" if self.tuning else "")


def parse_classes(text: str) -> tuple[int, ...]:
    """Class numbers from a comma list, in the order given."""
    classes: list[int] = []
    for word in (piece.strip() for piece in text.split(",")):
        if not (word.isascii() and word.isdecimal() and len(word) < len(str(_LARGEST_CLASS))):
            raise BadInput(
                f"class {word!r} is not a number: classes are places in the class list, counted "
                "from 0, with commas between them, as in mnist:0,2,4"
            )
        if int(word) in classes:
            raise BadInput(f"class {int(word)} is named twice in {text!r}; name each class once")
        classes.append(int(word))
    return tuple(classes)


def refuse_unknown_classes(
    classes: Sequence[int], class_names: Sequence[str], dataset: str
) -> None:
    for number in classes:
        if number >= len(class_names):
            known = ", ".join(f"{place} ({name})" for place, name in enumerate(class_names))
            raise BadInput(f"{dataset} has no class {number}; choose from: {known}")


def restrict(dataset: Dataset, word: DatasetWord) -> Dataset:
    """The records that `word` means: training records by class and part, test records by class.

    Guarantee: record-local. Whether a record is kept depends on its own label and id alone, and a
    private hold-out stays private. With `@tuning` no record of the test set is in what comes out.
    """
    train = restrict_training(dataset.train, word)
    if word.tuning:
        test = _validation_records(dataset.train, word)
        # What is said of a private hold-out is of the one that this one replaces.
        notes = (*(dataset.notes if dataset.test_is_public else ()), _TUNING_NOTE)
        return replace(dataset, train=train, test=test, test_is_public=False, notes=notes)
    if word.classes is None:
        return replace(dataset, train=train)
    test = _of_classes(dataset.test, word.classes)
    _refuse_nothing(test, "test", train.name)
    return replace(dataset, train=train, test=test)


def restrict_training(data: TrainingData, word: DatasetWord) -> TrainingData:
    """The training records that `word` means; its number of records is as public as the whole's."""
    if not word.selection:
        return data
    name = data.name + word.selection
    images, names, selected = data.private, data.class_names, data.selected
    if word.part is not None:
        images = images[_in_part(images.ids, word.part)]
    if word.tuning:
        images = images[~is_held_out(images.ids, VALIDATION, VALIDATION_SALT)]
    if word.classes is not None:
        refuse_unknown_classes(word.classes, names, data.name)
        images = _of_classes(images, word.classes)
        names = tuple(names[number] for number in word.classes)
        selected = data.numbers_of(word.classes)
    _refuse_nothing(images, "training", name)
    return replace(
        data,
        name=name,
        private=images,
        num_records=len(images),
        class_names=names,
        selected=selected,
        fingerprint=data.fingerprint + word.selection,
    )


def _validation_records(data: TrainingData, word: DatasetWord) -> Images:
    """Of the training records that `word` means, those that are not trained on."""
    images = restrict_training(data, replace(word, tuning=False)).private
    held_out = images[is_held_out(images.ids, VALIDATION, VALIDATION_SALT)]
    _refuse_nothing(held_out, "validation", data.name + word.selection)
    return held_out


def _in_part(ids: Tensor, part: Part) -> Tensor:
    labelling = is_held_out(ids, LABELLING, LABELLING_SALT)
    return labelling if part == "labelling" else ~labelling


def _of_classes(images: Images, classes: tuple[int, ...]) -> Images:
    """The images of these classes; their labels are places in `classes`."""
    kept = images[torch.isin(images.labels, torch.tensor(classes))]
    places = torch.zeros(max(classes) + 1, dtype=kept.labels.dtype)
    places[torch.tensor(classes)] = torch.arange(len(classes), dtype=kept.labels.dtype)
    return replace(kept, labels=places[kept.labels])


def _refuse_nothing(images: Images, kind: str, name: str) -> None:
    if len(images) == 0:
        raise BadInput(f"{name} holds no {kind} records; name other classes, or all of them")


def _part(text: str, tuning: bool) -> Part:
    for part in PARTS:
        if text == part:
            return part
    if tuning and text == TUNING:
        raise BadInput(f"@{TUNING} stands twice behind a dataset; name it once")
    raise unknown("part of a dataset", text, [*PARTS, TUNING])


def _exists(path: str) -> bool:
    return os.path.exists(os.path.expanduser(path))


def dataset_name(dataset: str) -> str:
    """A dataset as part of a name: of a path its stem, and what was selected of it."""
    try:
        word = DatasetWord.parse(dataset)
    except BadInput:  # recorded once, as a path that is gone
        word = DatasetWord(dataset)
    name = f"{Path(word.base).stem} {word.selection}"
    return re.sub(r"[^A-Za-z0-9]+", "-", name)[:_LONGEST_NAME].strip("-") or "data"
