"""The four sums in order, and the mixture of Gaussians that follows from them.

Each part's noise is paid for before the first is read; what is asked of the records later is chosen
from what was released before. Shapes: S classes, M components (cells of a class), K directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpray import models
from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.models.mixtures import GaussianMixture
from dpray.moments.clamping import allow_for_clamping
from dpray.moments.slots import Moments, factors_of
from dpray.moments.subspace import Subspace, open_subspace
from dpray.privacy.queries import GaussianSum, PaidQuery

# Of the budget of the moments, in squared Gaussian terms. Draws lose by the noise of cells; that of
# directions and of classes hardly shows (docs/dp-match.md).
SHARES = {
    "mean image": 0.02,
    "principal directions": 0.12,
    "class moments": 0.03,
    "cell moments": 0.83,
}
# A covariance in K directions, each with a K-th of the variance, is heard over its noise while K to
# the 3/2 is below about the records of a class in units of that noise; so many are asked for.
_HEARD, _DIMENSIONS = 0.52, 200
# Gaussians a class at most, and the records that each must have, in units of the noise of cells.
_COMPONENTS, _RECORDS = 10, 300
DRAWS = 4000  # of a class, that tell where its cells are
# What a record has beside the centre of its cell is cut so that this share of the class's draws is
# left whole.
_WITHIN = 0.9


def noisy_mixture(
    data: TrainingData,
    run: Run,
    paid: Sequence[PaidQuery[GaussianSum]],
    *,
    dimensions: int | None,
    radius: float,
    components: int | None,
    view: str = "pixels",
    grains: int = 0,
) -> tuple[GaussianMixture, Subspace]:
    """A mixture for every class, and the subspace that it lives in.

    `paid` are the queries of `SHARES`, in that order; `radius` is the length, per root of a pixel,
    that longer images are scaled down to. Without `dimensions`, or `components` of a class, their
    number follows from the noise and the number of records, which are public. In `grains` more
    directions images have the same grain in all classes, which the noisy second moment tells.
    """
    mean, directions, classes, cells = paid
    heard = data.num_records / data.num_classes / cells.query.noise_multiplier
    if dimensions is None:
        most = min(_DIMENSIONS, math.prod(data.shape))
        dimensions = max(1, min(int(_HEARD * heard ** (2 / 3)), most))
    if components is None:
        components = max(1, min(int(heard / _RECORDS), _COMPONENTS))
    inner = open_subspace(
        data, run, mean, directions, dimensions=dimensions, radius=radius, view=view, grains=grains
    )
    labels = data.private.labels
    middles = inner.middle.expand(data.num_classes, -1)
    of_classes = inner.moments("classes", labels, middles, inner.longest, classes).shrunk(1)
    mixture = _as_mixture(of_classes, data, inner, 1, view)
    centres = cell_centres(mixture, components, run)
    reach = _reach(mixture, centres, inner, run)
    slots = inner.cells(labels, centres)
    moments = inner.moments("cells", slots, centres.flatten(0, 1), reach, cells)
    mixture = _as_mixture(moments.shrunk(components), data, inner, components, view)
    mixture.load_state_dict(run.world.from_first(lambda: _unclamped(mixture, run)))
    return mixture, inner


def _unclamped(mixture: GaussianMixture, run: Run) -> dict[str, Tensor]:
    allow_for_clamping(mixture, run.generator("clamping"))
    return mixture.state_dict()


def _as_mixture(
    moments: Moments, data: TrainingData, inner: Subspace, components: int, view: str
) -> GaussianMixture:
    slots = (data.num_classes, components)
    made = models.build(
        "gaussian-mixture",
        shape=list(data.shape),
        num_classes=data.num_classes,
        dimensions=inner.basis.shape[1],
        components=components,
        view=view,
        grains=inner.grain.shape[1],
    )
    assert isinstance(made, GaussianMixture)
    # What is left of the covariances keeps its noise.
    factors = factors_of(moments.covariances) / inner.scale.unsqueeze(-1)
    means = moments.centres + moments.shifts / inner.scale
    counts = moments.counts.reshape(slots)
    state = {
        "basis": inner.basis,
        **({"grain": inner.grain} if inner.grain.shape[1] else {}),
        "weights": counts / counts.sum(1, keepdim=True),
        "means": means.reshape(*slots, -1),
        "factors": factors.reshape(*slots, *factors.shape[1:]),
    }
    made.load_state_dict({name: value.float() for name, value in state.items()})
    return made


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
    labels = [torch.full((DRAWS,), label) for label in range(len(mixture.means))]
    return [mixture.points(of_class, rng).cpu().double() for of_class in labels]
