"""Moments: noisy principal directions, then a noisy mean and covariance a class. The honest floor.

Private data are touched by two sums, or three: the second moment of all images, the moments of each
class in the leading directions, and, where the budget affords a mixture, the moments of each
cell of a class. The cells come from samples of the class's own noisy Gaussian, so choosing
them is free. All noise is paid for before the first sum; the rest is post-processing.
Shapes: N records, D pixels, K directions, S classes, M components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from dpray import models
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.mixtures import GaussianMixture
from dpray.privacy.ledger import Ledger
from dpray.privacy.mechanisms import (
    from_upper_triangle,
    noisy_second_moment,
    noisy_slot_sums,
    upper_triangle,
)
from dpray.privacy.planning import calibrate
from dpray.privacy.queries import GaussianSum, PaidQuery

# Below this noise a mixture pays: measured on MNIST and Fashion-MNIST, docs/results.md.
_NOISE_FOR_A_MIXTURE = 1.0
_COMPONENTS = 4
_DIMENSIONS = 60
# Of the budget, in squared Gaussian terms: directions, classes, cells.
_SHARES = {False: (0.2, 0.8), True: (0.15, 0.25, 0.6)}
_NAMES = ("principal directions", "class moments", "cell moments")
# A record's mean, second moment and count enter with these weights; their squares add up to 1.
_MEAN, _SECOND, _COUNT = (weight / math.sqrt(2.04) for weight in (1.0, 1.0, 0.2))
_SAMPLES_FOR_CELLS = 4000


@register("dp-moments")
@dataclass(frozen=True, kw_only=True)
class DPMoments:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "Gaussians from noisy class moments in noisy principal directions"
    paper: ClassVar[str] = "-"

    dimensions: int | None = None  # of the subspace the Gaussians live in; None: 60 or all
    # Longer images are scaled down to this length, per root of a pixel: 10 for 28x28.
    radius: float = 0.36
    components: int | None = None  # a class; None: 4 where the noise allows it, else 1

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        pixels = math.prod(data.shape)
        if self.dimensions is not None and not 1 <= self.dimensions <= pixels:
            raise BadInput(f"dimensions {self.dimensions} must be 1 to {pixels}, all of an image")
        if self.components is not None and self.components < 1:
            raise BadInput(f"components {self.components} must be at least 1")
        if not 0 < self.radius <= 1:
            raise BadInput(f"radius {self.radius:g} must be above 0 and at most 1")

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        components = self._components(run)
        paid = [run.ledger.pay(query) for query in _queries(run, mixture=components > 1)]
        run.facts.update(sampling="all records, no sampling")  # each part has a noise of its own
        pixels = data.private.pixels.flatten(1)
        length = self.radius * math.sqrt(pixels.shape[1])
        dimensions = self.dimensions or min(_DIMENSIONS, pixels.shape[1])
        with run.progress("dp-moments", len(paid)) as bar:
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            basis = run.once("directions", lambda: _directions(pixels, length, run, paid[0]))
            basis = basis[:, -dimensions:]
            bar.advance()
            inner = Subspace(pixels, basis, length, data.num_records, run)
            classes = inner.moments("classes", data.private.labels, data.num_classes, paid[1])
            mixture = classes.mixture(data, basis, length, components=1)
            bar.advance()
            if components > 1:
                centres = _cell_centres(mixture, components, run)
                cells = inner.cells(data.private.labels, centres)
                moments = inner.moments("cells", cells, len(centres) * components, paid[2])
                mixture = moments.mixture(data, basis, length, components)
                bar.advance()
        arguments = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "dimensions": dimensions,
            "components": components,
        }
        return Synthesizer(
            model="gaussian-mixture",
            arguments=arguments,
            module=mixture,
            class_names=data.class_names,
            shape=data.shape,
        )

    def _components(self, run: Run) -> int:
        if self.components is not None:
            return self.components
        noise = run.noise_multiplier or _noise_of_all(run.ledger)
        return _COMPONENTS if noise < _NOISE_FOR_A_MIXTURE else 1


@dataclass(frozen=True)
class Moments:
    """Released count, mean and covariance of each slot, in units of the longest image."""

    counts: Tensor  # (slots,)
    means: Tensor  # (slots, K)
    covariances: Tensor  # (slots, K, K), not yet positive

    def mixture(
        self, data: TrainingData, basis: Tensor, length: float, components: int
    ) -> GaussianMixture:
        slots = (data.num_classes, components)
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
        num_cells = centres.shape[1]
        nearest = torch.empty_like(labels)
        for rows in torch.arange(len(labels)).split(2000):
            points = self.length * self.raw_points(rows)
            distances = (points.unsqueeze(1) - centres[labels[rows]]).norm(dim=2)
            nearest[rows] = distances.argmin(1)
        return labels * num_cells + nearest


def _noise_of_all(ledger: Ledger) -> float:
    """The noise of a single release that takes all of the budget."""
    one = calibrate(
        lambda noise: GaussianSum(name="moments", noise_multiplier=noise),
        ledger.budget,
        adjacency=ledger.adjacency,
    )
    return one.noise_multiplier


def _queries(run: Run, *, mixture: bool) -> list[GaussianSum]:
    def with_noise(noise: float) -> list[GaussianSum]:
        return [
            GaussianSum(name=name, noise_multiplier=noise / math.sqrt(share))
            for name, share in zip(_NAMES, _SHARES[mixture], strict=False)
        ]

    if run.noise_multiplier is not None:
        return with_noise(run.noise_multiplier)
    return run.world.from_first(lambda: run.ledger.calibrate_together(with_noise))


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


def _cell_centres(mixture: GaussianMixture, components: int, run: Run) -> Tensor:
    """(S, M, K): k-means on samples of each class's noisy Gaussian. No record is read."""

    def cluster() -> Tensor:
        rng = run.generator("cells")
        centres = []
        for label in range(len(mixture.means)):
            points = mixture.points(torch.full((_SAMPLES_FOR_CELLS,), label), rng)
            found = KMeans(components, n_init=1, random_state=run.seed).fit(points.double().numpy())
            centres.append(torch.from_numpy(found.cluster_centers_))
        return torch.stack(centres)

    return run.world.from_first(cluster)
