"""The random draws of one encoder: a function of (seed, subset number) and of nothing else.

So an encoder comes out the same in whatever block, and on whatever worker, it is trained. These
draws hide nothing: they are the ordinary randomness of training, on the private side.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def member_seed(seed: int, number: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed}/{number}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class MemberDraws:
    """Latent noise and batches of the encoder of subset `number`, which has `size` records."""

    def __init__(self, seed: int, number: int, size: int, batch_size: int, latent: int) -> None:
        self.size, self.count, self.latent = size, min(size, batch_size), latent
        self._noise = torch.Generator().manual_seed(member_seed(seed, number, "latents"))
        self._batch = torch.Generator().manual_seed(member_seed(seed, number, "batches"))

    def noise(self, steps: int) -> Tensor:
        """(steps, records of a batch, latent) for the next `steps` steps."""
        return torch.randn(steps, self.count, self.latent, generator=self._noise)

    def rows(self, steps: int) -> Tensor:
        """(steps, records of a batch): all of them, or as many as a batch holds, no one twice."""
        if self.count == self.size:
            return torch.arange(self.size).expand(steps, -1)
        order = torch.rand(steps, self.size, generator=self._batch).argsort(dim=1, stable=True)
        return order[:, : self.count]
