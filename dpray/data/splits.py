"""Splits and partitions as keyed functions of the record id.

Where a record goes depends on (salt, its own id) and on nothing else: removing one record
moves no other, so a hold-out or a partition adds nothing to the sensitivity. The salt is public
and fixed; give every use its own, for two splits under one salt are the same split.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from dpray.data.records import Images
from dpray.errors import BadInput


def keyed_fraction(ids: Tensor, salt: str) -> Tensor:
    """A number in [0, 1) for every id, float64 (N,): uniform over ids, fixed for each of them."""
    blocks = np.zeros((len(ids), 2), dtype="<u8")
    blocks[:, 0] = ids.numpy().astype("<i8").view("<u8")
    key = hashlib.sha256(salt.encode()).digest()
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    bits = np.frombuffer(encryptor.update(blocks.tobytes()), dtype="<u8")[::2]
    # 53 bits are what a float64 holds exactly: more would round some ids up to 1.
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def is_held_out(ids: Tensor, fraction: float, salt: str) -> Tensor:
    """Which ids fall into a hold-out of about `fraction` of all records, bool (N,)."""
    if not 0.0 <= fraction <= 1.0:
        raise BadInput(f"a hold-out of {fraction} is not a fraction; choose from 0 to 1")
    return keyed_fraction(ids, salt) < fraction


def split(images: Images, fraction: float, salt: str) -> tuple[Images, Images]:
    """(kept, held out), each in the order of `images`."""
    held_out = is_held_out(images.ids, fraction, salt)
    return images[~held_out], images[held_out]


def partition(ids: Tensor, parts: int, salt: str) -> Tensor:
    """The part, 0 to parts - 1, that each id belongs to, int64 (N,). Parts differ in size."""
    if parts < 1:
        raise BadInput(f"cannot partition records into {parts} parts; at least 1 is needed")
    return (keyed_fraction(ids, salt) * parts).long().clamp_(max=parts - 1)
