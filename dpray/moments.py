"""Mixtures of Gaussians from noisy moments of classes and of their cells, in noisy directions.

Four sums over all records, each of which makes the next one quieter: the mean image; the second
moment of what images have beside it, whose leading directions span a subspace; the moments of every
class; and those of every cell of a class. A cell's moments are taken around a centre that is public
by then, so a record has less to add and the same noise drowns less. Directions are scaled by the
root of their deviation: quiet ones are heard as well, loud ones are not known better than is of
use. `dp-moments` releases such mixtures as they are, `dp-match` starts from their draws.
Shapes: N records, D pixels, K directions, S classes, M components (cells of a class).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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

# Of the budget of the moments, in squared Gaussian terms.
SHARES = {
    "mean image": 0.02,
    "principal directions": 0.18,
    "class moments": 0.25,
    "cell moments": 0.55,
}
# Directions of the subspace at most: many where the noise of the second moment, in records, is
# below this.
_FEW, _MANY, _QUIET = 60, 100, 1e-4
# A covariance in K directions, each with a K-th of the variance, is heard over its noise while K to
# the 3/2 is below about the records of a class in units of that noise.
_HEARD = 1.15
# Gaussians a class at most, and the records that each must have, in units of the noise of cells:
# with fewer, on 1,435 digits, four of them were worth less than one.
_COMPONENTS, _RECORDS = 4, 40
_SAMPLES_FOR_CELLS = 4000
_BLOCK = 2000  # points in memory at once
_SPREAD = 0.6  # of the radius: what an image may have beside the mean image
_QUIETEST = 1e-4  # of the largest variance: a direction with less is scaled as if it had this
# Where what a record has beside its centre is cut: of a class at so many times the root mean
# square, of a cell so that this share of the class's draws is left whole.
_LONGEST = 1.3
_WITHIN = 0.9
# A record's mean, second moment and count enter with these weights; their squares add up to 1.
_MEAN, _SECOND, _COUNT = (weight / math.sqrt(1.01) for weight in (0.6, 0.8, 0.1))


def noisy_mixture(
    data: TrainingData,
    run: Run,
    paid: Sequence[PaidQuery[GaussianSum]],
    *,
    dimensions: int | None,
    radius: float,
    components: int | None,
) -> tuple[GaussianMixture, Subspace]:
    """A mixture for every class, and the subspace that it lives in.

    `paid` are the queries of `SHARES`, in that order; `radius` is the length, per root of a pixel,
    that longer images are scaled down to. Without `dimensions`, or `components` of a class, their
    number follows from the noise and the number of records, which are public.
    """
    mean, directions, classes, cells = paid
    records = data.num_records / data.num_classes
    if dimensions is None:
        quiet = directions.query.noise_multiplier / data.num_records < _QUIET
        heard = int(_HEARD * (records / classes.query.noise_multiplier) ** (2 / 3))
        dimensions = max(1, min(heard, _MANY if quiet else _FEW, math.prod(data.shape)))
    if components is None:
        allowed = int(records / _RECORDS / cells.query.noise_multiplier)
        components = max(1, min(allowed, _COMPONENTS))
    inner = _open_subspace(data, run, mean, directions, dimensions=dimensions, radius=radius)
    labels = data.private.labels
    middles = inner.middle.expand(data.num_classes, -1)
    of_classes = inner.moments("classes", labels, middles, inner.longest, classes)
    mixture = of_classes.mixture(data, inner, components=1)
    centres = cell_centres(mixture, components, run)
    reach = _reach(mixture, centres, inner, run)
    slots = inner.cells(labels, centres)
    moments = inner.moments("cells", slots, centres.flatten(0, 1), reach, cells)
    return moments.shrunk(components).mixture(data, inner, components), inner


def _open_subspace(
    data: TrainingData,
    run: Run,
    mean: PaidQuery[GaussianSum],
    directions: PaidQuery[GaussianSum],
    *,
    dimensions: int,
    radius: float,
) -> Subspace:
    pixels = data.private.pixels.flatten(1)
    length = radius * math.sqrt(pixels.shape[1])
    middle = run.once("mean image", lambda: _mean_image(pixels, length, data, run, mean))
    spread = _SPREAD * length
    second = run.once(
        "directions",
        lambda: noisy_second_moment(
            lambda rows: (pixels[rows].double() - middle) / spread,
            len(pixels),
            pixels.shape[1],
            paid=directions,
            key=run.key,
            world=run.world,
        ),
    )
    basis = run.world.from_first(lambda: _leading(second, middle, dimensions))
    variances = (basis * (second @ basis)).sum(0) * spread**2 / data.num_records
    floor = _QUIETEST * variances.max().clamp(min=1e-12)
    return Subspace(
        pixels, basis, middle @ basis, variances.clamp(min=floor), data.num_records, run
    )


def _mean_image(
    pixels: Tensor, length: float, data: TrainingData, run: Run, paid: PaidQuery[GaussianSum]
) -> Tensor:
    """(D,): the noisy mean of images that were scaled down to `length` where they are longer."""
    total = noisy_slot_sums(
        lambda rows: pixels[rows] / length,
        torch.zeros(len(pixels), dtype=torch.long),
        num_slots=1,
        dimension=pixels.shape[1],
        paid=paid,
        key=run.key,
        world=run.world,
    )
    return length * total[0] / data.num_records


def _leading(second: Tensor, middle: Tensor, dimensions: int) -> Tensor:
    """(D, K): the direction of the mean image, and the leading ones of what is beside it."""
    first = (middle / middle.norm().clamp(min=1e-12)).unsqueeze(1)
    along = first @ first.T
    beside = torch.eye(len(middle), dtype=middle.dtype) - along
    # Noise makes some variances negative: the direction that is there already must come after them.
    last = 2 * second.norm() * along
    vectors = torch.linalg.eigh(beside @ second @ beside - last)[1]
    return torch.cat([first, vectors[:, vectors.shape[1] - (dimensions - 1) :].flip(1)], 1)


@dataclass(frozen=True)
class Moments:
    """Released count, mean and covariance of each slot; all but means in scaled coordinates."""

    counts: Tensor  # (slots,)
    centres: Tensor  # (slots, K), that were public before
    shifts: Tensor  # (slots, K): how far the mean is from the centre, scaled
    covariances: Tensor  # (slots, K, K), not yet positive, scaled
    # Deviation of the noise in one entry of them, for each slot.
    shift_noise: Tensor
    covariance_noise: Tensor

    def shrunk(self, components: int) -> Moments:
        """Moments of cells, moved to what their class says as far as their noise is to blame.

        The noise is known, so what of a difference is noise is known as well, on the average.
        """
        size = self.shifts.shape[1]
        own = _share_of_signal(self.shifts.square().sum(1), size * self.shift_noise.square())
        grouped = (self.counts * self.covariances.permute(1, 2, 0)).permute(2, 0, 1)
        totals = grouped.unflatten(0, (-1, components)).sum(1)
        records = self.counts.reshape(-1, components).sum(1)
        of_class = _positive(totals / records.reshape(-1, 1, 1)).repeat_interleave(components, 0)
        beside = self.covariances - of_class
        entries = size * (size + 1) / 2
        kept = _share_of_signal(
            beside.square().sum((1, 2)), entries * self.covariance_noise.square()
        )
        return replace(
            self,
            shifts=own.unsqueeze(1) * self.shifts,
            covariances=of_class + kept.reshape(-1, 1, 1) * beside,
        )

    def mixture(self, data: TrainingData, inner: Subspace, components: int) -> GaussianMixture:
        slots = (data.num_classes, components)
        made = models.build(
            "gaussian-mixture",
            shape=list(data.shape),
            num_classes=data.num_classes,
            dimensions=inner.basis.shape[1],
            components=components,
        )
        assert isinstance(made, GaussianMixture)
        values, vectors = torch.linalg.eigh(self.covariances)
        # What noise made negative is no variance; what is left keeps its noise.
        factors = vectors * values.clamp(min=0).sqrt().unsqueeze(-2) / inner.scale.unsqueeze(-1)
        means = self.centres + self.shifts / inner.scale
        counts = self.counts.reshape(slots)
        state = {
            "basis": inner.basis,
            "weights": counts / counts.sum(1, keepdim=True),
            "means": means.reshape(*slots, -1),
            "factors": factors.reshape(*slots, *factors.shape[1:]),
        }
        made.load_state_dict({name: value.float() for name, value in state.items()})
        return made


def _share_of_signal(squares: Tensor, noise: Tensor) -> Tensor:
    """Of squared lengths that noise of this expected squared length is part of."""
    return ((squares - noise) / squares.clamp(min=1e-300)).clamp(0, 1)


def _positive(matrices: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT


@dataclass(frozen=True)
class Subspace:
    """The private images, seen in the released directions, and what may be asked of them."""

    pixels: Tensor  # (N, D), private
    basis: Tensor  # (D, K), released
    middle: Tensor  # (K,): the mean image, released
    variances: Tensor  # (K,): along the directions, released
    num_records: int
    run: Run

    @cached_property
    def scale(self) -> Tensor:
        """(K,): what coordinates are multiplied with before their moments are taken.

        Between asking all directions as they are and asking them as if all were equally loud.
        """
        return self.variances**-0.25

    @property
    def longest(self) -> float:
        """Where what an image has beside the mean image is cut, scaled."""
        return _LONGEST * float((self.variances * self.scale.square()).sum().sqrt())

    def raw_points(self, rows: Tensor) -> Tensor:
        """(n, K): images in the subspace."""
        return self.pixels[rows].double() @ self.basis

    def moments(
        self, name: str, slots: Tensor, centres: Tensor, reach: float, paid: PaidQuery[GaussianSum]
    ) -> Moments:
        """Count, mean and covariance of every slot around its public centre, from one noisy sum.

        Guarantee: with u its scaled difference from the centre, cut at `reach` and divided by it,
        a record adds (mean weight * u, second weight * uu', count weight) to its slot, of norm at
        most one because u has norm at most one and the weights do.
        """
        size, num_slots = self.basis.shape[1], len(centres)

        def raw_vectors(rows: Tensor) -> Tensor:
            away = (self.raw_points(rows) - centres[slots[rows]]) * self.scale / reach
            away = away / away.norm(dim=1, keepdim=True).clamp(min=1)
            second = upper_triangle(away.unsqueeze(2) * away.unsqueeze(1))
            count = torch.full((len(rows), 1), _COUNT, dtype=torch.float64)
            return torch.cat([_MEAN * away, _SECOND * second, count], 1)

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
        shifts = reach * sums[:, :size] / _MEAN / counts.unsqueeze(1)
        second = from_upper_triangle(sums[:, size:-1], size) / _SECOND / counts.reshape(-1, 1, 1)
        noise = paid.query.noise_multiplier * paid.query.sensitivity / counts
        return Moments(
            counts=counts,
            centres=centres,
            shifts=shifts,
            covariances=reach**2 * second - shifts.unsqueeze(2) * shifts.unsqueeze(1),
            shift_noise=reach * noise / _MEAN,
            covariance_noise=reach**2 * noise / _SECOND,
        )

    def cells(self, labels: Tensor, centres: Tensor) -> Tensor:
        """(N,): which cell of which class each record falls into; record-local."""
        rows = torch.arange(len(labels))
        points = [self.raw_points(part) for part in rows.split(_BLOCK)]
        return nearest_cells(torch.cat(points), labels, centres)


def cell_centres(mixture: GaussianMixture, components: int, run: Run) -> Tensor:
    """(S, M, K): k-means on draws of each class's released Gaussians. No record is read."""
    from sklearn.cluster import KMeans  # slow to import, and listing the methods needs it not

    def cluster() -> Tensor:
        centres = []
        for points in _draws_of_classes(mixture, run):
            found = KMeans(components, n_init=1, random_state=run.seed).fit(points.numpy())
            centres.append(torch.from_numpy(found.cluster_centers_))
        return torch.stack(centres)

    return run.world.from_first(cluster)


def _reach(mixture: GaussianMixture, centres: Tensor, inner: Subspace, run: Run) -> float:
    """How far most draws lie from the centre of their cell, scaled. No record is read."""

    def measure() -> float:
        lengths = []
        for label, points in enumerate(_draws_of_classes(mixture, run)):
            nearest = torch.cdist(points, centres[label]).argmin(1)
            away = (points - centres[label][nearest]) * inner.scale
            lengths.append(away.norm(dim=1))
        return max(float(torch.cat(lengths).quantile(_WITHIN)), 1e-6)

    return run.world.from_first(measure)


def _draws_of_classes(mixture: GaussianMixture, run: Run) -> list[Tensor]:
    """For every class (draws, K); the same ones whenever it is asked."""
    rng = run.generator("cells")
    labels = [torch.full((_SAMPLES_FOR_CELLS,), label) for label in range(len(mixture.means))]
    return [mixture.points(of_class, rng).cpu().double() for of_class in labels]


def nearest_cells(points: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """(N,): the cell whose centre lies nearest, among those of the point's own class."""
    nearest = torch.empty_like(labels)
    for rows in torch.arange(len(labels)).split(_BLOCK):
        distances = (points[rows].unsqueeze(1) - centres[labels[rows]]).norm(dim=2)
        nearest[rows] = distances.argmin(1)
    return labels * centres.shape[1] + nearest
