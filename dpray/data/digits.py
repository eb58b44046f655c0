"""scikit-learn's 8 x 8 digits, enlarged to 28 x 28: a dataset that needs no network.

About a fifth of the 1797 records, chosen by a keyed hash of the row number, is the test set.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch.nn.functional import interpolate

from dpray.data.arrays import StoredImages
from dpray.data.records import Images
from dpray.data.splits import is_held_out

NUM_RECORDS = 1797
_TEST_FRACTION = 0.2
_SALT = "dpray/digits/test/1"
_LARGEST = 16.0
_SIDE = 28


@cache
def counts() -> tuple[int, int]:
    """(training records, test records)."""
    num_test = int(_test_rows().sum())
    return NUM_RECORDS - num_test, num_test


def read_digits() -> tuple[StoredImages, StoredImages]:
    """(training records, test records) as 8 x 8 bytes of 0 to 16; `enlarge` makes images."""
    from sklearn.datasets import load_digits  # slow to import, and only this dataset needs it

    loaded = load_digits()
    everything = StoredImages(
        loaded.images.astype(np.uint8)[:, None],
        loaded.target.astype(np.int64),
        np.arange(len(loaded.target), dtype=np.int64),
    )
    is_test = _test_rows()
    return everything[~is_test], everything[is_test]


def enlarge(stored: StoredImages) -> Images:
    pixels = torch.from_numpy(stored.pixels).float().div_(_LARGEST)
    pixels = interpolate(pixels, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
    # Bilinear weights sum to 1 only up to rounding.
    return Images(
        pixels.clamp_(0.0, 1.0), torch.from_numpy(stored.labels), torch.from_numpy(stored.ids)
    )


def _test_rows() -> np.ndarray:
    return is_held_out(torch.arange(NUM_RECORDS), _TEST_FRACTION, _SALT).numpy()
