"""The user's own images in a folder of class folders, checked on the way in.

A class is a folder, its name the class name. `train` and `test` folders of class folders are
taken as such. All images have one size; they are grey if all are, else all become RGB. A
record's id is a hash of its path within the folder, so adding or removing files moves no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dpray.data.arrays import StoredImages
from dpray.data.npz import OwnRecords
from dpray.data.sources import Say
from dpray.errors import BadData

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)

_Found = list[tuple[Path, int]]  # an image file and its label


def read_image_folder(folder: Path, say: Say) -> OwnRecords:
    # A folder `train` that holds images is a class by that name, not a training part.
    has_parts = bool(_class_folders(folder / "train"))
    train_folder = folder / "train" if has_parts else folder
    test_folder = folder / "test" if has_parts and (folder / "test").is_dir() else None

    class_names = tuple(_class_folders(train_folder))
    if not class_names:
        raise BadData(f"{folder} has no class folders; expected one folder of images a class")
    train = _find(train_folder, class_names, say, every_class=True)
    test = _find(test_folder, class_names, say, every_class=False) if test_folder else []
    if test_folder and not test:
        raise BadData(f"{test_folder} holds no images; fill it or take it away")

    mode, size = _shared_form(folder, [path for path, _ in train + test])
    notes: tuple[str, ...] = ("class list taken from the folder names: treated as public",)
    if test:
        notes += ("the folder test was declared as a test set: treated as public",)
    return OwnRecords(
        _decode(folder, train, mode, size),
        _decode(folder, test, mode, size) if test else None,
        class_names,
        notes,
    )


def _class_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."
    )


def _find(folder: Path, class_names: Sequence[str], say: Say, *, every_class: bool) -> _Found:
    unknown = set(_class_folders(folder)) - set(class_names)
    if unknown:
        raise BadData(f"{folder} has a class {min(unknown)!r} that the training part has not")
    found: _Found = []
    num_others = 0
    for label, name in enumerate(class_names):
        files = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        images = [path for path in files if path.suffix.lower() in _SUFFIXES]
        images = [path for path in images if path.name[0] != "."]
        num_others += len(files) - len(images)
        if not images and every_class:
            raise BadData(f"{folder / name} holds no images; expected at least one for its class")
        found += [(path, label) for path in images]
    if num_others:
        say(f"{folder}: left out {num_others} files that are not images")
    return found


def _shared_form(folder: Path, paths: Sequence[Path]) -> tuple[str, tuple[int, int]]:
    """(L or RGB, (width, height)) of all images, read from their headers alone."""
    first_size: tuple[int, int] | None = None
    all_grey = True
    for path in paths:
        try:
            with Image.open(path) as image:
                size, mode = image.size, image.mode
        except _UNREADABLE:
            raise BadData(f"{path} is not an image that can be read") from None
        if mode not in _GREY | _COLOUR:
            raise BadData(f"{path} has pixels of kind {mode}; expected 8 bits a channel")
        first_size = first_size or size
        if size != first_size:
            raise BadData(
                f"{path} is {size[0]} x {size[1]} and {paths[0].relative_to(folder)} is "
                f"{first_size[0]} x {first_size[1]}; expected images of one size"
            )
        all_grey = all_grey and mode in _GREY
    assert first_size is not None
    return ("L" if all_grey else "RGB"), first_size


def _decode(folder: Path, found: _Found, mode: str, size: tuple[int, int]) -> StoredImages:
    width, height = size
    pixels = np.empty((len(found), height, width, len(mode)), dtype=np.uint8)
    for row, (path, _) in enumerate(found):
        try:
            with Image.open(path) as image:
                pixels[row] = np.asarray(image.convert(mode)).reshape(height, width, len(mode))
        except _UNREADABLE:
            raise BadData(f"{path} is not an image that can be read") from None
    ids = [path_id(path.relative_to(folder)) for path, _ in found]
    if len(set(ids)) < len(ids):
        raise BadData(f"two paths in {folder} hash to one record id; rename one of the files")
    return StoredImages(
        np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)),
        np.array([label for _, label in found], dtype=np.int64),
        np.array(ids, dtype=np.int64),
    )


def path_id(path: Path) -> int:
    """63 bits of a hash of a relative path: the same on every system, never negative."""
    digest = hashlib.blake2b(path.as_posix().encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1
