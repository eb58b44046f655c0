"""Moments: a mixture of Gaussians for every class, from four noisy sums. The honest floor.

Private data are touched by the sums of `dpray.moments`: the mean image, the second moment of what
is beside it, the moments of each class in the leading directions, and those of each cell of a
class. The cells come from draws of the class's own noisy Gaussian, so choosing them is free. All
noise is paid for before the first sum; the rest is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpray.checks import at_least_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.moments import SHARES, noisy_mixture
from dpray.privacy.queries import GaussianSum


@register("dp-moments")
@dataclass(frozen=True, kw_only=True)
class DPMoments:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "mixtures of Gaussians from noisy moments in noisy principal directions"
    )
    paper: ClassVar[str] = "-"

    # Of the subspace the Gaussians live in; None: up to 100, as noise allows.
    dimensions: int | None = None
    # Longer images are scaled down to this length, per root of a pixel: 10 for 28x28.
    radius: float = 0.36
    components: int | None = None  # Gaussians a class; None: up to 4, as noise allows

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        pixels = math.prod(data.shape)
        if self.dimensions is not None and not 1 <= self.dimensions <= pixels:
            raise BadInput(f"dimensions {self.dimensions} must be 1 to {pixels}, all of an image")
        at_least_one(self, "components")
        if not 0 < self.radius <= 1:
            raise BadInput(f"radius {self.radius:g} must be above 0 and at most 1")

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        paid = [run.ledger.pay(query) for query in _queries(run)]
        run.facts.update(sampling="all records, no sampling")  # each part has a noise of its own
        with run.progress("dp-moments", 1) as bar:
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            mixture, _ = noisy_mixture(
                data,
                run,
                paid,
                dimensions=self.dimensions,
                radius=self.radius,
                components=self.components,
            )
            bar.advance()
        arguments = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "dimensions": mixture.basis.shape[1],
            "components": mixture.means.shape[1],
        }
        return Synthesizer(
            model="gaussian-mixture",
            arguments=arguments,
            module=mixture,
            class_names=data.class_names,
            shape=data.shape,
        )


def _queries(run: Run) -> list[GaussianSum]:
    def with_noise(noise: float) -> list[GaussianSum]:
        return [
            GaussianSum(name=name, noise_multiplier=noise / math.sqrt(share))
            for name, share in SHARES.items()
        ]

    if run.noise_multiplier is not None:
        return with_noise(run.noise_multiplier)
    return run.world.from_first(lambda: run.ledger.calibrate_together(with_noise))
