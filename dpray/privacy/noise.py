"""The secret key of a run, and all randomness that carries the guarantee.

Batch choice and noise of step t are functions of (key, purpose, t): a step that is replayed
after a crash is the same step, bit for bit, on any number of workers. AES is the source: as a
keyed function of the record id it draws Poisson masks, in counter mode it feeds Box-Muller in
float64. The key is 32 bytes from the operating system in a file only its owner may read; it is
never logged, and is overwritten and removed when the run ends. `--seed` has no part in it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from dpray.errors import BadInput, CannotResume

_KEY_BYTES = 32
# A float64 normal is the sum of this many draws over its square root: the low bits of the
# result then do not give away one Box-Muller pair (Holohan and Braghin 2021).
_DRAWS_A_NORMAL = 4


@dataclass(frozen=True)
class RunKey:
    _secret: bytes = field(repr=False)
    for_tests: bool = False  # a key anybody can guess: the card says `not for release`

    @classmethod
    def fresh(cls) -> RunKey:
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def insecure(cls, number: int) -> RunKey:
        """A key that tests can name. Whatever it made must not be released."""
        return cls(hashlib.sha256(f"insecure test key {number}".encode()).digest(), for_tests=True)

    @classmethod
    def read(cls, path: Path) -> RunKey:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise CannotResume(
                f"the secret key of this run is gone ({path.name} was destroyed when the run "
                "ended): its steps cannot be replayed; start a new run"
            ) from None
        for_tests, secret = text[:1] == b"T", text[1:]
        if len(secret) != _KEY_BYTES or text[:1] not in (b"T", b"S"):
            raise CannotResume(f"{path.name} is damaged: {len(text)} bytes instead of 33")
        return cls(secret, for_tests=for_tests)

    def write(self, path: Path) -> None:
        """Writes the key once, owner-only from the first byte on."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write((b"T" if self.for_tests else b"S") + self._secret)
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def destroy(path: Path) -> None:
        """Overwrites and removes a key file: after it nobody can subtract the noise."""
        if not path.exists():
            return
        with open(path, "r+b") as file:
            file.write(secrets.token_bytes(_KEY_BYTES + 1))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def derive(self, purpose: str) -> RunKey:
        """An independent key for another part of the run, such as one stage or one trial."""
        return RunKey(self._subkey(f"derive/{purpose}"), self.for_tests)

    def commitment(self, text: str) -> str:
        """A keyed digest: recognises `text` again without saying anything about it."""
        return self._subkey(f"commitment/{text}").hex()

    def uniform_bits(self, purpose: str, step: int, ids: Tensor) -> np.ndarray:
        """A uniform 64-bit number for every record id, a keyed function of (purpose, step, id)."""
        blocks = np.empty((len(ids), 2), dtype="<u8")
        blocks[:, 0] = ids.numpy().astype("<i8").view("<u8")
        blocks[:, 1] = np.uint64(step)
        encryptor = Cipher(algorithms.AES(self._subkey(f"ids/{purpose}")), modes.ECB()).encryptor()
        return np.frombuffer(encryptor.update(blocks.tobytes()), dtype="<u8")[::2]

    def poisson_rows(self, purpose: str, step: int, ids: Tensor, rate: float) -> Tensor:
        """The rows of `ids` that step `step` picks, each with probability `rate` on its own.

        Guarantee: whether a record is picked depends on the key, the step and its own id and
        on nothing else, so neither other records nor the number of workers can change it.
        """
        if rate >= 1.0:
            return torch.arange(len(ids))
        threshold = np.uint64(int(rate * 2.0**64))
        picked = self.uniform_bits(purpose, step, ids) < threshold
        return torch.from_numpy(np.flatnonzero(picked))

    def record_normals(self, purpose: str, step: int, ids: Tensor, count: int) -> Tensor:
        """(len(ids), count) standard normals in float32, a keyed function of (purpose, step, id).

        For draws that belong to a record, such as the latent noise of its reconstruction: they
        are the same on any number of workers, whoever else is in the batch. They hide nothing;
        noise that carries the guarantee comes from `normals`.
        """
        pairs = (count + 1) // 2
        if pairs >= 1 << 16:
            raise BadInput(f"{count} draws a record are too many: at most {2 * ((1 << 16) - 1)}")
        blocks = np.empty((len(ids), pairs, 2), dtype="<u8")
        blocks[:, :, 0] = ids.numpy().astype("<i8").view("<u8")[:, None]
        blocks[:, :, 1] = (np.uint64(step) << np.uint64(16)) + np.arange(pairs, dtype="<u8")
        secret = self._subkey(f"record normals/{purpose}")
        encryptor = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()
        bits = np.frombuffer(encryptor.update(blocks.tobytes()), dtype="<u8").reshape(-1, pairs, 2)
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[..., 0])), 2 * np.pi * uniform[..., 1]
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return torch.from_numpy(both[:, :count].astype(np.float32))

    def normals(self, purpose: str, step: int, count: int) -> Tensor:
        """`count` standard normals in float64, a keyed function of (purpose, step)."""
        stream = Cipher(
            algorithms.AES(self._subkey(f"normals/{purpose}/{step}")), modes.CTR(bytes(16))
        ).encryptor()
        half = (count + 1) // 2
        total = torch.zeros(2 * half, dtype=torch.float64)
        for _ in range(_DRAWS_A_NORMAL):
            bits = torch.frombuffer(bytearray(stream.update(bytes(16 * half))), dtype=torch.int64)
            # The top 53 bits, as a number in (0, 1): never 0, so its logarithm is finite.
            uniform = (bits >> 11).bitwise_and_((1 << 53) - 1).double().add_(0.5).mul_(2.0**-53)
            radius = uniform[:half].log_().mul_(-2.0).sqrt_()
            angle = uniform[half:].mul_(2.0 * math.pi)
            total[:half] += radius * angle.cos()
            total[half:] += radius * angle.sin()
        return total[:count].mul_(_DRAWS_A_NORMAL**-0.5)

    def _subkey(self, purpose: str) -> bytes:
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).digest()
