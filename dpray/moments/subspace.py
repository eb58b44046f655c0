"""The private images in a few noisy directions, and the moments that may be asked of them there.

Private data are touched in the sums of `open_subspace` and of `Subspace.moments`. A slot's moments
are taken around a centre that is public by then, so a record has less to add and the same noise
drowns less. Directions are scaled by the root of their deviation: quiet ones are heard as well,
loud ones are not known better than is of use.
Shapes: N records, V numbers of a view (D pixels, as they are), K directions, G grains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.models.generators import Shape
from dpray.models.views import view_as
from dpray.moments.shrinkage import kept_matrices
from dpray.moments.slots import Moments, factors_of
from dpray.privacy.mechanisms import (
    from_upper_triangle,
    noisy_second_moment,
    noisy_slot_sums,
)
from dpray.privacy.queries import GaussianSum, PaidQuery
from dpray.privacy.slot_moments import noisy_slot_moments

_BLOCK = 2000  # points in memory at once
_SPREAD = 0.6  # of the radius: what an image may have beside the mean image
_QUIETEST = 1e-4  # of the largest variance: a direction with less is scaled as if it had this
# What a record has beside the mean image is cut at so many times the root mean square.
_LONGEST = 1.3
# A record's mean, second moment and count enter with these weights; their squares add up to 1.
_WEIGHTS = _MEAN, _SECOND, _COUNT = tuple(w / math.sqrt(1.01) for w in (0.6, 0.8, 0.1))


def open_subspace(
    data: TrainingData,
    run: Run,
    mean: PaidQuery[GaussianSum],
    directions: PaidQuery[GaussianSum],
    *,
    dimensions: int,
    radius: float,
    view: str,
    grains: int,
) -> Subspace:
    """The subspace of `dimensions` noisy directions of images seen as `view`.

    `radius` is the length, per root of a pixel, that longer images are scaled down to.
    """
    seen = view_as(view, data.shape)
    vectors = torch.cat([seen.vectors(part) for part in data.private.pixels.split(_BLOCK)])
    waves = torch.block_diag(cosines(data.shape), torch.eye(seen.beside).double())
    length = seen.length * radius * math.sqrt(math.prod(data.shape))
    middle = run.once("mean image", lambda: _mean_image(vectors, length, data, run, mean))
    spread = _SPREAD * length
    noisy = run.once(
        "directions",
        lambda: noisy_second_moment(
            lambda rows: (vectors[rows].double() - middle) / spread,
            len(vectors),
            vectors.shape[1],
            paid=directions,
            key=run.key,
            world=run.world,
        ),
    )
    noise = directions.query.noise_multiplier * directions.query.sensitivity
    second = run.world.from_first(lambda: _smooth(noisy, noise, waves))
    basis = run.world.from_first(lambda: _leading(second, middle, dimensions))
    variances = (basis * (second @ basis)).sum(0) * spread**2 / data.num_records
    floor = _QUIETEST * variances.max().clamp(min=1e-12)
    grain = run.world.from_first(lambda: _grain(second, basis, grains))
    return Subspace(
        vectors,
        basis,
        middle @ basis,
        variances.clamp(min=floor),
        spread / math.sqrt(data.num_records) * grain,
        data.num_records,
        run,
    )


def _mean_image(
    vectors: Tensor, length: float, data: TrainingData, run: Run, paid: PaidQuery[GaussianSum]
) -> Tensor:
    """(D,): the noisy mean of vectors that were scaled down to `length` where they are longer."""
    total = noisy_slot_sums(
        lambda rows: vectors[rows] / length,
        torch.zeros(len(vectors), dtype=torch.long),
        num_slots=1,
        dimension=vectors.shape[1],
        paid=paid,
        key=run.key,
        world=run.world,
    )
    return length * total[0] / data.num_records


def _smooth(noisy: Tensor, noise: float, waves: Tensor) -> Tensor:
    """(D, D): a noisy second moment, without what its noise explains.

    Seen as waves: those of images are slow ones, noise is in all alike, so where fast waves have no
    more than noise they are silenced. That images are smooth is known of images, not of records.
    """
    as_waves = (waves @ noisy @ waves.T).unsqueeze(0)
    kept = kept_matrices(as_waves, torch.tensor([noise], dtype=noisy.dtype))[0]
    return waves.T @ kept @ waves


def cosines(shape: Shape) -> Tensor:
    """(D, D), orthonormal rows: each goes up and down so often along height and width."""
    channels, height, width = shape

    def along(size: int) -> Tensor:
        places = (torch.arange(size).double() + 0.5) * math.pi / size
        waves = torch.cos(torch.arange(size).double().unsqueeze(1) * places)
        return waves / waves.norm(dim=1, keepdim=True)

    return torch.kron(torch.eye(channels).double(), torch.kron(along(height), along(width)))


def _leading(second: Tensor, middle: Tensor, dimensions: int) -> Tensor:
    """(D, K): the direction of the mean image, and the leading ones of what is beside it."""
    first = (middle / middle.norm().clamp(min=1e-12)).unsqueeze(1)
    along = first @ first.T
    beside = torch.eye(len(middle), dtype=middle.dtype) - along
    # Noise makes some variances negative: the direction that is there already must come after them.
    last = (2 * second.norm() + 1) * along
    vectors = torch.linalg.eigh(beside @ second @ beside - last)[1]
    return torch.cat([first, vectors[:, vectors.shape[1] - (dimensions - 1) :].flip(1)], 1)


def _grain(second: Tensor, basis: Tensor, grains: int) -> Tensor:
    """(V, G): a factor of what is left of a second moment beside the directions of `basis`."""
    across = torch.eye(len(basis), dtype=basis.dtype) - basis @ basis.T
    factors = factors_of(across @ second @ across)
    return factors[:, len(basis) - grains :]  # the largest come last


@dataclass(frozen=True)
class Subspace:
    """The private images, seen in the released directions, and what may be asked of them."""

    vectors: Tensor  # (N, V): images as a view tells them; private
    basis: Tensor  # (V, K), released
    middle: Tensor  # (K,): the mean image, released
    variances: Tensor  # (K,): along the directions, released
    grain: Tensor  # (V, G): a factor of what images have beside the directions, released
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
        return self.vectors[rows].double() @ self.basis

    def moments(
        self, name: str, slots: Tensor, centres: Tensor, reach: float, paid: PaidQuery[GaussianSum]
    ) -> Moments:
        """Count, mean and covariance of every slot around its public centre, from one noisy sum.

        What a record has beside the centre is scaled, and cut at `reach`.
        """
        size, num_slots = self.basis.shape[1], len(centres)

        def raw_points(rows: Tensor) -> Tensor:
            return (self.raw_points(rows) - centres[slots[rows]]) * self.scale / reach

        def release() -> Tensor:
            return noisy_slot_moments(
                raw_points,
                slots,
                num_slots=num_slots,
                dimension=size,
                weights=_WEIGHTS,
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


def nearest_cells(points: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """(N,): the cell whose centre lies nearest, among those of the point's own class."""
    nearest = torch.empty_like(labels)
    for rows in torch.arange(len(labels)).split(_BLOCK):
        distances = (points[rows].unsqueeze(1) - centres[labels[rows]]).norm(dim=2)
        nearest[rows] = distances.argmin(1)
    return labels * centres.shape[1] + nearest
