"""Random Fourier features of images, and their noisy sums by slot, each with its count.

Features have norm one by construction: that bounds a record, whatever is in it. The frequencies
are drawn by the public seed, so features are record-local.
Shapes: N records, D pixels, F frequencies (2F features).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpray.contract import Run
from dpray.privacy.mechanisms import noisy_slot_sums
from dpray.privacy.queries import GaussianSum, PaidQuery

# The count of a slot rides along with this weight beside features of norm one.
COUNT = 0.2
SENSITIVITY = math.sqrt(1 + COUNT**2)


@dataclass(frozen=True)
class Embedding:
    """Images to random Fourier features of norm one."""

    frequencies: Tensor  # (D, F)

    def __call__(self, images: Tensor) -> Tensor:
        angles = images.flatten(1) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(self.frequencies.shape[1])


def random_embedding(
    shape: tuple[int, int, int], frequencies: int, bandwidth: float, run: Run
) -> Embedding:
    """`bandwidth` is the squared width of the kernel per pixel: a constant, never of the data."""
    size = math.prod(shape)
    rng = run.generator("frequencies")
    width = math.sqrt(bandwidth * size)
    return Embedding(torch.randn(size, frequencies, generator=rng).to(run.device) / width)


def noisy_embedding_sums(
    pixels: Tensor,
    slots: Tensor,
    num_slots: int,
    embed: Embedding,
    run: Run,
    paid: PaidQuery[GaussianSum],
) -> Tensor:
    """(num_slots, 2F + 1): noisy sums of features and, last, of weighted counts.

    Guarantee: a record adds its features, of norm one, and the weight of its count to one slot:
    a vector of norm `SENSITIVITY`, which is what the query has to be paid with. Its slot must
    depend on that record and on public things alone.
    """

    def raw_vectors(rows: Tensor) -> Tensor:
        features = embed(pixels[rows].to(run.device))
        return torch.cat([features, features.new_full((len(rows), 1), COUNT)], 1)

    return noisy_slot_sums(
        raw_vectors,
        slots,
        num_slots=num_slots,
        dimension=2 * embed.frequencies.shape[1] + 1,
        paid=paid,
        key=run.key,
        world=run.world,
    )


def counts_of(sums: Tensor, num_records: int) -> Tensor:
    """About how many records every slot has. `sums` are what `noisy_embedding_sums` gave."""
    # A slot counts for something, whatever the noise says: a tenth of an even share.
    return (sums[:, -1] / COUNT).clamp(min=_fewest(sums, num_records))


def means_of(sums: Tensor, num_records: int) -> tuple[Tensor, Tensor]:
    """The mean features of every slot, and whether noise is all that its count shows."""
    counts = counts_of(sums, num_records)
    return sums[:, :-1] / counts.unsqueeze(1), counts <= _fewest(sums, num_records)


def _fewest(sums: Tensor, num_records: int) -> float:
    return max(0.1 * num_records / len(sums), 1.0)
