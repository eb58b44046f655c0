"""Noisy moments of classes in noisy principal directions, and the Gaussians that follow from them.

A record's image is scaled down to a public length and seen in the released directions; one sum a
slot then gives count, mean and covariance. `dp-moments` releases such Gaussians as they are,
`dp-match` starts from their draws.
Shapes: N records, D pixels, K directions, S classes, M components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpray import models
from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.models.mixtures import GaussianMixture
from dpray.privacy.mechanisms import (
    from_upper_triangle,
    noisy_second_moment,
    noisy_slot_sums,
    upper_triangle,
)
from dpray.privacy.queries import GaussianSum, PaidQuery

_SAMPLES_FOR_CELLS = 4000
_BLOCK = 2000  # points in memory at once
# A record's mean, second moment and count enter with these weights; their squares add up to 1.
_MEAN, _SECOND, _COUNT = (weight / math.sqrt(2.04) for weight in (1.0, 1.0, 0.2))


def open_subspace(
    data: TrainingData, run: Run, paid: PaidQuery[GaussianSum], *, dimensions: int, radius: float
) -> Subspace:
    """The leading `dimensions` of the noisy second moment of all images.

    `radius` is the length, per root of a pixel, that longer images are scaled down to.
    """
    pixels = data.private.pixels.flatten(1)
    length = radius * math.sqrt(pixels.shape[1])
    basis = run.once("directions", lambda: _directions(pixels, length, run, paid))
    return Subspace(pixels, basis[:, -dimensions:], length, data.num_records, run)


@dataclass(frozen=True)
class Moments:
    """Released count, mean and covariance of each slot, in units of the longest image."""

    counts: Tensor  # (slots,)
    means: Tensor  # (slots, K)
    covariances: Tensor  # (slots, K, K), not yet positive

    def mixture(self, data: TrainingData, inner: Subspace, components: int) -> GaussianMixture:
        slots = (data.num_classes, components)
        basis, length = inner.basis, inner.length
        made = models.build(
            "gaussian-mixture",
            shape=list(data.shape),
            num_classes=data.num_classes,
            dimensions=basis.shape[1],
            components=components,
        )
        assert isinstance(made, GaussianMixture)
        values, vectors = torch.linalg.eigh(self.covariances)
        # What noise made negative is no variance; what is left keeps its noise.
        factors = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
        counts = self.counts.reshape(slots)
        state = {
            "basis": basis,
            "weights": counts / counts.sum(1, keepdim=True),
            "means": length * self.means.reshape(*slots, -1),
            "factors": length * factors.reshape(*slots, *factors.shape[1:]),
        }
        made.load_state_dict({name: value.float() for name, value in state.items()})
        return made


@dataclass(frozen=True)
class Subspace:
    """The private images, seen in the released directions, and what may be asked of them."""

    pixels: Tensor  # (N, D), private
    basis: Tensor  # (D, K), released
    length: float  # the public bound on an image
    num_records: int
    run: Run

    def raw_points(self, rows: Tensor) -> Tensor:
        """(n, K): images in the subspace, of norm at most one."""
        points = self.pixels[rows].double() @ self.basis / self.length
        return points / points.norm(dim=1, keepdim=True).clamp(min=1)

    def moments(
        self, name: str, slots: Tensor, num_slots: int, paid: PaidQuery[GaussianSum]
    ) -> Moments:
        """Count, mean and covariance of every slot, from one noisy sum.

        Guarantee: a record adds (mean weight * p, second weight * pp', count weight) to its slot,
        of norm at most one because p has norm at most one and the weights do.
        """
        size = self.basis.shape[1]

        def raw_vectors(rows: Tensor) -> Tensor:
            points = self.raw_points(rows)
            second = upper_triangle(points.unsqueeze(2) * points.unsqueeze(1))
            count = torch.full((len(rows), 1), _COUNT, dtype=torch.float64)
            return torch.cat([_MEAN * points, _SECOND * second, count], 1)

        def release() -> Tensor:
            return noisy_slot_sums(
                raw_vectors,
                slots,
                num_slots=num_slots,
                dimension=size + size * (size + 1) // 2 + 1,
                paid=paid,
                key=self.run.key,
                world=self.run.world,
            )

        sums = self.run.once(name, release)
        # A slot counts for something, whatever the noise says: a tenth of an even share.
        least = 0.1 * self.num_records / num_slots
        counts = (sums[:, -1] / _COUNT).clamp(min=max(least, 1.0))
        means = sums[:, :size] / _MEAN / counts.unsqueeze(1)
        second = from_upper_triangle(sums[:, size:-1], size) / _SECOND / counts.reshape(-1, 1, 1)
        return Moments(counts, means, second - means.unsqueeze(2) * means.unsqueeze(1))

    def cells(self, labels: Tensor, centres: Tensor) -> Tensor:
        """(N,): which cell of which class each record falls into; record-local."""
        rows = torch.arange(len(labels))
        points = [self.length * self.raw_points(part) for part in rows.split(_BLOCK)]
        return nearest_cells(torch.cat(points), labels, centres)


def _directions(pixels: Tensor, length: float, run: Run, paid: PaidQuery[GaussianSum]) -> Tensor:
    """(D, D): eigenvectors of the noisy second moment, the leading ones last."""
    second = noisy_second_moment(
        lambda rows: pixels[rows] / length,
        len(pixels),
        pixels.shape[1],
        paid=paid,
        key=run.key,
        world=run.world,
    )
    return run.world.from_first(lambda: torch.linalg.eigh(second)[1])


def cell_centres(mixture: GaussianMixture, components: int, run: Run) -> Tensor:
    """(S, M, K): k-means on draws of each class's released Gaussian. No record is read."""
    from sklearn.cluster import KMeans  # slow to import, and listing the methods needs it not

    def cluster() -> Tensor:
        rng = run.generator("cells")
        centres = []
        for label in range(len(mixture.means)):
            points = mixture.points(torch.full((_SAMPLES_FOR_CELLS,), label), rng).cpu()
            found = KMeans(components, n_init=1, random_state=run.seed).fit(points.double().numpy())
            centres.append(torch.from_numpy(found.cluster_centers_))
        return torch.stack(centres)

    return run.world.from_first(cluster)


def nearest_cells(points: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """(N,): the cell whose centre lies nearest, among those of the point's own class."""
    nearest = torch.empty_like(labels)
    for rows in torch.arange(len(labels)).split(_BLOCK):
        distances = (points[rows].unsqueeze(1) - centres[labels[rows]]).norm(dim=2)
        nearest[rows] = distances.argmin(1)
    return labels * centres.shape[1] + nearest
