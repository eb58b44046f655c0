"""Moments: a mixture of Gaussians for every class, from four noisy sums.

Private data are touched by the sums of `dpray.moments`: the mean image, the second moment of what
is beside it, the moments of each class in the leading directions, and those of each cell of a
class. The cells come from draws of the class's own noisy Gaussian, so choosing them is free. All
noise is paid for before the first sum; the rest is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from dpray import bending, models
from dpray.checks import at_least_one, between
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.gaussian_shares import gaussians_that_share
from dpray.methods import register
from dpray.models.mixtures import GaussianMixture
from dpray.models.views import refuse_unknown_view
from dpray.moments.mixture import DRAWS, SHARES, cell_centres, noisy_mixture
from dpray.privacy.queries import GaussianSum
from dpray.released_sets import released_set

_STRENGTHS = (0.0, 0.5, 1.0)  # of bending, that records are asked about
_GRAINS = 300  # directions beside those of the Gaussians, of the same grain for all classes


@register("dp-moments")
@dataclass(frozen=True, kw_only=True)
class DPMoments:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "mixtures of Gaussians from noisy moments in noisy principal directions"
    )
    paper: ClassVar[str] = "-"

    # Of the subspace the Gaussians live in; None: up to 200, as noise allows.
    dimensions: int | None = None
    # Longer images are scaled down to this length, per root of a pixel: 10 for 28x28.
    radius: float = 0.36
    components: int | None = None  # Gaussians a class; None: up to 10, as noise allows
    # As what images are seen: as `pixels`, `upright` (and how they lay apart from that), or upright
    # and as `ink`, by how far its edge is. The last two are for handwriting; garments lose by them.
    view: str = "pixels"
    # How far a draw is bent at most. None: the best of three strengths, by a noisy count of
    # records; it costs two percent of the budget.
    warp: float | None = None
    # Images a class, of a set that is released in place of a generator: means of the cells that
    # draws of a class fall into. None: a generator, of any number of images.
    spc: int | None = None

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        refuse_unknown_view(self.view)
        between(self, 0, 3, "warp")
        pixels = math.prod(data.shape)
        if self.dimensions is not None and not 1 <= self.dimensions <= pixels:
            raise BadInput(f"dimensions {self.dimensions} must be 1 to {pixels}, all of an image")
        at_least_one(self, "components")
        at_least_one(self, "spc")
        if self.spc is not None and self.spc > DRAWS:
            raise BadInput(f"spc {self.spc} must be at most {DRAWS}: so many draws are looked at")
        if self.spc is not None and self.warp:
            raise BadInput(f"warp {self.warp:g} must be 0 or left out: a set is released as it is")
        if not 0 < self.radius <= 1:
            raise BadInput(f"radius {self.radius:g} must be above 0 and at most 1")

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        paid = [run.ledger.pay(query) for query in self._queries(run)]
        moments, bends = paid[: len(SHARES)], paid[len(SHARES) :]
        run.facts.update(sampling="all records, no sampling")  # each part has a noise of its own
        with run.progress("dp-moments", 1) as bar:
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            mixture, _ = noisy_mixture(
                data,
                run,
                moments,
                dimensions=self.dimensions,
                radius=self.radius,
                components=self.components,
                view=self.view,
                grains=min(_GRAINS, math.prod(data.shape)),
            )
            bar.advance()
        if self.spc is not None:
            means = mixture.images(cell_centres(mixture, self.spc, run).flatten(0, 1).float())
            labels = torch.arange(data.num_classes).repeat_interleave(self.spc)
            return released_set(means, labels, data)
        if self.warp is not None:
            return self._release(mixture, data, self.warp)
        bent = [self._release(mixture, data, strength) for strength in _STRENGTHS]
        return bent[bending.best_of([release.module for release in bent], data, run, bends[0])]

    def _queries(self, run: Run) -> list[GaussianSum]:
        asked = bending.SHARE if self.warp is None and self.spc is None else 0.0
        shares = {name: ((1 - asked) * share, 1.0) for name, share in SHARES.items()}
        if asked:
            shares["bending"] = (asked, bending.sensitivity(len(_STRENGTHS)))
        return gaussians_that_share(shares, run)

    def _release(self, mixture: GaussianMixture, data: TrainingData, warp: float) -> Synthesizer:
        arguments = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "dimensions": mixture.basis.shape[1],
            "components": mixture.means.shape[1],
            "view": self.view,
            "warp": warp,
            "grains": mixture.grain.shape[1],
        }
        module = models.build("gaussian-mixture", **arguments)
        module.load_state_dict(mixture.state_dict())
        return Synthesizer(
            model="gaussian-mixture",
            arguments=arguments,
            module=module.eval(),
            class_names=data.class_names,
            shape=data.shape,
        )
