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

from dpray.checks import at_least_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.moments import cell_centres, open_subspace
from dpray.privacy.ledger import Ledger
from dpray.privacy.planning import calibrate
from dpray.privacy.queries import GaussianSum

# Below this noise a mixture pays: measured on MNIST and Fashion-MNIST, docs/results.md.
_NOISE_FOR_A_MIXTURE = 1.0
_COMPONENTS = 4
_DIMENSIONS = 60
# Of the budget, in squared Gaussian terms: directions, classes, cells.
_SHARES = {False: (0.2, 0.8), True: (0.15, 0.25, 0.6)}
_NAMES = ("principal directions", "class moments", "cell moments")


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
        at_least_one(self, "components")
        if not 0 < self.radius <= 1:
            raise BadInput(f"radius {self.radius:g} must be above 0 and at most 1")

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        components = self._components(run)
        paid = [run.ledger.pay(query) for query in _queries(run, mixture=components > 1)]
        run.facts.update(sampling="all records, no sampling")  # each part has a noise of its own
        dimensions = self.dimensions or min(_DIMENSIONS, math.prod(data.shape))
        with run.progress("dp-moments", len(paid)) as bar:
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            inner = open_subspace(data, run, paid[0], dimensions=dimensions, radius=self.radius)
            bar.advance()
            classes = inner.moments("classes", data.private.labels, data.num_classes, paid[1])
            mixture = classes.mixture(data, inner, components=1)
            bar.advance()
            if components > 1:
                centres = cell_centres(mixture, components, run)
                cells = inner.cells(data.private.labels, centres)
                moments = inner.moments("cells", cells, len(centres) * components, paid[2])
                mixture = moments.mixture(data, inner, components)
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
