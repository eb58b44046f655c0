"""From arrays as stored (numpy, bytes or floats) to `Images`, and the fingerprint of them.

The fingerprint is taken of the arrays as stored: hashing bytes is four times cheaper than
hashing the float32 pixels made from them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from dpray.data.records import Images

_FORMAT = b"dpray records 1\n"
# Test records of a built-in dataset are numbered from here, beyond every training row.
FIRST_TEST_ID = 1 << 32


@dataclass(frozen=True)
class StoredImages:
    pixels: np.ndarray  # (N, C, H, W) uint8, 0 to 255, or floating, 0 to 1
    labels: np.ndarray  # (N,) int64
    ids: np.ndarray  # (N,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: np.ndarray) -> StoredImages:
        return StoredImages(self.pixels[rows], self.labels[rows], self.ids[rows])

    def to_images(self) -> Images:
        pixels = torch.from_numpy(np.ascontiguousarray(self.pixels))
        is_bytes = pixels.dtype == torch.uint8
        pixels = pixels.to(torch.float32, copy=True)
        if is_bytes:
            pixels.div_(255.0)
        return Images(pixels, torch.from_numpy(self.labels), torch.from_numpy(self.ids))

    def fingerprint(self) -> str:
        """SHA-256 over pixels, labels and ids in stored order, with their types and shapes."""
        digest = hashlib.sha256(_FORMAT)
        for array in (self.pixels, self.labels, self.ids):
            digest.update(f"{array.dtype.str}{array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def numbered(pixels: np.ndarray, labels: np.ndarray, first_id: int = 0) -> StoredImages:
    """Records whose id is their row number, counted from `first_id`."""
    ids = np.arange(first_id, first_id + len(labels), dtype=np.int64)
    return StoredImages(pixels, labels.astype(np.int64), ids)
