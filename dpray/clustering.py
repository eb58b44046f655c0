"""Noisy k-means: clusters of features of norm one, by a few noisy sums over all records.

The first sum gives the mean of all records, and centres start around it in public directions; each
further one gives the mean of every cluster. Between two sums everything is post-processing.
Shapes: N records, K clusters, F frequencies (2F features).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpray.contract import Run
from dpray.embeddings import SENSITIVITY, Embedding, means_of, noisy_embedding_sums
from dpray.privacy.queries import GaussianSum, PaidQuery
from dpray.progress import Bar

_BLOCK = 2000  # records in memory at once
_APART = 0.1  # how far centres start from where they come from, of features of norm one


def clustering_queries(iterations: int, noise_multiplier: float) -> list[GaussianSum]:
    """What `Clustering.centres` asks: one sum for the mean, and one for every iteration."""
    names = ["feature mean", *(f"k-means {number}" for number in range(1, iterations + 1))]
    return [
        GaussianSum(name=name, noise_multiplier=noise_multiplier, sensitivity=SENSITIVITY)
        for name in names
    ]


@dataclass(frozen=True)
class Clustering:
    """The private images as features, and what may be asked of them."""

    pixels: Tensor  # (N, C, H, W), private: this rank's share
    embed: Embedding
    num_records: int  # of all ranks, public
    run: Run

    def centres(self, count: int, paid: Sequence[PaidQuery[GaussianSum]], bar: Bar) -> Tensor:
        """(K, 2F), released: by the queries of `clustering_queries`, each once."""
        everyone = torch.zeros(len(self.pixels), dtype=torch.long)
        mean, _ = self._means("feature-mean", everyone, 1, paid[0])
        centres = self._around(mean, count, 0)
        bar.advance()
        for number, one in enumerate(paid[1:], 1):
            means, lost = self._means(f"k-means-{number}", self.nearest(centres), count, one)
            # A cluster that hardly any record is in starts anew, beside another one.
            beside = self._around(means[(~lost).long().argmax()], count, number)
            centres = torch.where(lost.unsqueeze(1), beside, means)
            bar.advance()
        return centres

    def nearest(self, centres: Tensor) -> Tensor:
        """(N,): the cluster of every record; record-local, for the centres are released."""
        there = centres.to(self.run.device)
        # Squared distances, but for what is the same for all centres.
        offsets = 0.5 * there.square().sum(1)
        found = [
            (self.embed(part.to(self.run.device)).double() @ there.T - offsets).argmax(1).cpu()
            for part in self.pixels.split(_BLOCK)
        ]
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)

    def _means(
        self, name: str, slots: Tensor, count: int, paid: PaidQuery[GaussianSum]
    ) -> tuple[Tensor, Tensor]:
        """Noisy mean features of every slot, and which of them are too small to have any."""
        sums = self.run.once(
            name,
            lambda: noisy_embedding_sums(self.pixels, slots, count, self.embed, self.run, paid),
        )
        return means_of(sums, self.num_records)

    def _around(self, point: Tensor, count: int, number: int) -> Tensor:
        """(count, 2F): short steps away from a point, in directions by the public seed."""
        rng = self.run.generator(f"centres {number}")
        size = point.shape[-1]
        directions = torch.randn(count, size, generator=rng, dtype=torch.float64)
        # Processors may differ in the last bit of a root: all ranks take rank 0's.
        steps = self.run.world.share(directions / directions.norm(dim=1, keepdim=True))
        return point + _APART * steps
