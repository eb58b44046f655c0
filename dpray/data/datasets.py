"""The table of built-in datasets, and the door to all data: `load` and `fetch`.

A built-in dataset is public, so its test set is too. Ids are row numbers in the original file.
A name in the table wins over a file of that name: write ./mnist for a folder called mnist. A name
or a path may carry classes and a part (`dpray.data.words`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from dpray.data import digits, idx, torchvision_sets
from dpray.data.arrays import StoredImages
from dpray.data.fetch import fetch as fetch_files
from dpray.data.fetch import to_stderr
from dpray.data.files import looks_complete
from dpray.data.own import load_own, looks_like_a_path
from dpray.data.records import Dataset, Images, TrainingData
from dpray.data.shards import block_numbers, blocks, shard
from dpray.data.sources import Say
from dpray.data.words import DatasetWord, restrict
from dpray.errors import BadInput, unknown

__all__ = ["BUILT_IN", "BuiltIn", "block_numbers", "blocks", "fetch", "load", "load_whole", "shard"]

_DIGITS = tuple("0123456789")
_GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_OBJECTS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_SEXES = ("female", "male")


class _Read(Protocol):
    def __call__(self, *, fetch_missing: bool, say: Say) -> tuple[StoredImages, StoredImages]: ...


class _Fetch(Protocol):
    def __call__(self, *, from_folder: Path | None, say: Say) -> None: ...


@dataclass(frozen=True)
class BuiltIn:
    name: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    num_train: int
    num_test: int
    source: str
    read: _Read
    fetch: _Fetch
    on_disk: Callable[[], bool]
    to_images: Callable[[StoredImages], Images] = StoredImages.to_images


def load(word: str, *, fetch_missing: bool = True, say: Say = to_stderr) -> Dataset:
    """The dataset that a word means: all of one, or the records of some classes and a part."""
    parsed = DatasetWord.parse(word)
    return restrict(load_whole(parsed.base, fetch_missing=fetch_missing, say=say), parsed)


def refuse_unknown(word: str) -> None:
    """Refuses what names no dataset, without reading one."""
    _refuse_unknown_name(DatasetWord.parse(word).base)


def _refuse_unknown_name(name_or_path: str) -> None:
    if name_or_path not in BUILT_IN and not looks_like_a_path(name_or_path):
        raise unknown("dataset", name_or_path, BUILT_IN)


def load_whole(name_or_path: str, *, fetch_missing: bool = True, say: Say = to_stderr) -> Dataset:
    """A built-in dataset by name, or the user's own by path; fetched first where need be."""
    _refuse_unknown_name(name_or_path)
    if name_or_path not in BUILT_IN:
        return load_own(Path(name_or_path), say)
    entry = BUILT_IN[name_or_path]
    train, test = entry.read(fetch_missing=fetch_missing, say=say)
    data = TrainingData(
        name=entry.name,
        private=entry.to_images(train),
        num_records=len(train),
        class_names=entry.class_names,
        fingerprint=train.fingerprint(),
    )
    return Dataset(data, entry.to_images(test), test_is_public=True)


def fetch(name: str, *, from_folder: Path | None = None, say: Say = to_stderr) -> None:
    """Puts a built-in dataset into the cache, replacing what is damaged there."""
    if name not in BUILT_IN:
        raise unknown("dataset", name, BUILT_IN)
    BUILT_IN[name].fetch(from_folder=from_folder, say=say)


def _idx(dataset: idx.IdxDataset, class_names: tuple[str, ...], source: str) -> BuiltIn:
    def fetch_idx(*, from_folder: Path | None, say: Say) -> None:
        fetch_files(dataset.files, dataset.sources, from_folder=from_folder, say=say)

    return BuiltIn(
        dataset.files.name,
        (1, 28, 28),
        class_names,
        60_000,
        10_000,
        source,
        partial(idx.read, dataset),
        fetch_idx,
        partial(looks_complete, dataset.files),
    )


def _digits() -> BuiltIn:
    def read(*, fetch_missing: bool, say: Say) -> tuple[StoredImages, StoredImages]:
        return digits.read_digits()

    def fetch_nothing(*, from_folder: Path | None, say: Say) -> None:
        say("digits: comes with scikit-learn, nothing to fetch")

    return BuiltIn(
        "digits",
        (1, 28, 28),
        _DIGITS,
        *digits.counts(),
        "scikit-learn's 8 x 8 digits, enlarged (Alpaydin and Kaynak 1998); needs no network",
        read,
        fetch_nothing,
        lambda: True,
        digits.enlarge,
    )


def _through_torchvision(
    name: str,
    folder: str,
    side: int,
    class_names: tuple[str, ...],
    counts: tuple[int, int],
    source: str,
    read: _Read,
) -> BuiltIn:
    def fetch_it(*, from_folder: Path | None, say: Say) -> None:
        if from_folder is not None:
            raise BadInput(f"{name} is read in place: name {str(from_folder)!r} in DPRAY_DATA")
        torchvision_sets.fetch_through_torchvision(folder, say)

    shape = (3, side, side)
    is_there = partial(torchvision_sets.on_disk, folder)
    return BuiltIn(name, shape, class_names, *counts, source, read, fetch_it, is_there)


_CELEBA = "Liu et al. 2015, faces with their attribute Male; through torchvision, needs gdown"

BUILT_IN: dict[str, BuiltIn] = {
    entry.name: entry
    for entry in (
        _idx(idx.MNIST, _DIGITS, "LeCun et al. 1998, handwritten digits"),
        _idx(idx.FASHION_MNIST, _GARMENTS, "Xiao et al. 2017, garments from Zalando"),
        _digits(),
        _through_torchvision(
            "cifar10",
            "cifar10",
            32,
            _OBJECTS,
            (50_000, 10_000),
            "Krizhevsky 2009, small photographs; through torchvision",
            torchvision_sets.read_cifar10,
        ),
        *(
            _through_torchvision(
                name,
                "celeba",
                side,
                _SEXES,
                (162_770, 19_962),
                _CELEBA,
                partial(torchvision_sets.read_celeba, side),
            )
            for name, side in (("celeba", 64), ("celeba-32", 32))
        ),
    )
}
