"""The user's own data, from an .npz file or a folder of images, as a `Dataset`.

Where the user declared no test part, about a tenth of the records is held out. That tenth is as
private as the rest, and `test_is_public` says so.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dpray.data.image_folder import read_image_folder
from dpray.data.npz import OwnRecords, read_npz
from dpray.data.records import Dataset, TrainingData
from dpray.data.sources import Say
from dpray.data.splits import is_held_out
from dpray.errors import BadData

HOLD_OUT = 0.1
HOLD_OUT_SALT = "dpray/own data/hold-out/1"


def looks_like_a_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith(".npz") or os.path.exists(name)


def load_own(path: Path, say: Say) -> Dataset:
    # os.path answers no where Path raises: a name that is too long, a user that does not exist.
    path = Path(os.path.expanduser(path))
    if not os.path.exists(path):
        raise BadData(f"no file or folder {str(path)!r}")
    try:
        records = _read(path, say)
    except OSError as error:
        raise BadData(f"cannot read {error.filename or path}: {error.strerror}") from None

    train, test, notes = records.train, records.test, records.notes
    test_is_public = test is not None
    if test is None:
        held_out = is_held_out(torch.from_numpy(train.ids), HOLD_OUT, HOLD_OUT_SALT).numpy()
        if held_out.all() or not held_out.any():
            raise BadData(
                f"{path} has too few records to hold out a tenth of them for the test; add "
                "records or declare a test part"
            )
        train, test = train[~held_out], train[held_out]
        notes += ("test records are a hold-out of about 10 % by record id: as private as the rest",)
    data = TrainingData(
        name=path.stem if path.is_file() else path.resolve().name,
        private=train.to_images(),
        num_records=len(train),
        class_names=records.class_names,
        fingerprint=train.fingerprint(),
    )
    return Dataset(data, test.to_images(), test_is_public, notes)


def _read(path: Path, say: Say) -> OwnRecords:
    if path.is_dir():
        return read_image_folder(path, say)
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    raise BadData(f"{path} is neither an .npz file nor a folder of class folders")
