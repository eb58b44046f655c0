"""What draws of a Gaussian lose where they are cut off at black and white, made up for beforehand.

A mean and a covariance are those of images from 0 to 1; a Gaussian knows no such ends, and its
draws, once cut off, have another mean and less variance. The Gaussian is moved until its *cut*
draws have the moments that were released. Reads released numbers only.
Shapes: S classes, M components, K directions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpray.models.mixtures import GaussianMixture
from dpray.moments.slots import factors_of

_ROUNDS = 3
_DRAWS = 1500  # and as many mirrored ones


@torch.no_grad()
def allow_for_clamping(mixture: GaussianMixture, rng: torch.Generator) -> None:
    """Moves means and factors of `mixture`, in place."""
    half = torch.randn(_DRAWS, mixture.basis.shape[1], generator=rng)
    draws = torch.cat([half, -half]).to(mixture.basis)
    beside = mixture.beside(len(draws), rng)
    for label in range(len(mixture.means)):
        for component in range(mixture.means.shape[1]):
            mean, factor = mixture.means[label, component], mixture.factors[label, component]
            moved = _moved(mean.clone(), factor.clone(), draws, beside, mixture)
            mixture.means[label, component], mixture.factors[label, component] = moved


def _moved(
    mean: Tensor, factor: Tensor, draws: Tensor, beside: Tensor, mixture: GaussianMixture
) -> tuple[Tensor, Tensor]:
    """A mean and a factor whose cut draws have the mean and the covariance of the given ones."""
    wanted_mean, wanted = mean, factor @ factor.T
    for _ in range(_ROUNDS):
        points = mean + draws @ factor.T
        cut = mixture.cut_off(points, beside) @ mixture.basis
        # Both moments of the same draws, so that their own chance cancels.
        mean = wanted_mean + (points - cut).mean(0)
        covariance = wanted + torch.cov(points.T) - torch.cov(cut.T)
        factor = factors_of(covariance.double()).to(factor)
    return mean, factor
