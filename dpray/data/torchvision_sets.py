"""CIFAR-10 and CelebA through torchvision's own loaders, which download and check them.

Both lie in the cache, or are read in place where DPRAY_DATA holds torchvision's layout
(cifar-10-batches-py, celeba). CelebA's label is its attribute Male; its faces are cut to the
middle square and resized, and its validation part is not used.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dpray.data.arrays import FIRST_TEST_ID, StoredImages, numbered
from dpray.data.fetch import fetch_lock
from dpray.data.folders import data_cache, given_data
from dpray.data.sources import FULL, Say, one_line
from dpray.errors import BadData, StorageFailed
from dpray.torchvision_shim import import_torchvision

_SILENCE_SECONDS = 30
_FOLDERS = {"cifar10": "cifar-10-batches-py", "celeba": "celeba"}


def on_disk(name: str) -> bool:
    return (_root(name) / _FOLDERS[name]).is_dir()


def fetch_through_torchvision(name: str, say: Say) -> None:
    """Downloads `name` into the cache, unless it is there."""
    if name == "cifar10":
        _open("cifar10", lambda sets: sets.CIFAR10(_root(name), download=True), say)
    else:
        _open("celeba", lambda sets: sets.CelebA(_root(name), download=True), say)


def read_cifar10(*, fetch_missing: bool, say: Say) -> tuple[StoredImages, StoredImages]:
    def part(train: bool, first_id: int) -> StoredImages:
        def opened(sets: Any) -> Any:
            return sets.CIFAR10(_root("cifar10"), train=train, download=fetch_missing)

        loaded = _open("cifar10", opened, say)
        pixels = np.ascontiguousarray(loaded.data.transpose(0, 3, 1, 2))
        return numbered(pixels, np.asarray(loaded.targets), first_id)

    return part(True, 0), part(False, FIRST_TEST_ID)


def read_celeba(size: int, *, fetch_missing: bool, say: Say) -> tuple[StoredImages, StoredImages]:
    def part(split: str, first_id: int) -> StoredImages:
        def opened(sets: Any) -> Any:
            return sets.CelebA(_root("celeba"), split=split, download=fetch_missing)

        loaded = _open("celeba", opened, say)
        say(f"celeba: decoding {len(loaded)} {split} images at {size} x {size}")
        labels = loaded.attr[:, loaded.attr_names.index("Male")].numpy()
        pixels = np.empty((len(loaded), 3, size, size), dtype=np.uint8)
        for row in range(len(loaded)):
            pixels[row] = middle_square(loaded[row][0], size)
        return numbered(pixels, labels, first_id)

    return part("train", 0), part("test", FIRST_TEST_ID)


def middle_square(image: Image.Image, size: int) -> np.ndarray:
    """The middle square of an image, resized to (3, size, size) bytes."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    resized = square.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized).transpose(2, 0, 1)


def _root(name: str) -> Path:
    given = given_data()
    if given is not None and (given / _FOLDERS[name]).is_dir():
        return given
    return data_cache() / name


def _open(name: str, open_it: Callable[[Any], Any], say: Say) -> Any:
    """Opens a torchvision dataset; whatever its download or reading raises becomes one line."""
    try:
        with fetch_lock(name, say), _impatient_sockets():
            _root(name).mkdir(parents=True, exist_ok=True)
            return open_it(import_torchvision().datasets)
    except (OSError, RuntimeError, ImportError, ValueError, EOFError, KeyError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise StorageFailed(f"no space left for {name} in {_root(name)}") from None
        raise BadData(
            f"cannot get {name} through torchvision ({one_line(error)}); put its folder "
            f"{_FOLDERS[name]} into {data_cache() / name} or into a folder named in DPRAY_DATA"
        ) from None


@contextmanager
def _impatient_sockets() -> Iterator[None]:
    """torchvision sets no timeout on its downloads and would wait for a silent host for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
