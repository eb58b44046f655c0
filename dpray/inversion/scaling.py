"""Latents on a common scale, by statistics of public records alone.

A learner of private latents expects numbers of about the size of one, and a bound on norms that
cuts off little. Both would be private facts if they came from private latents; here they come
from latents of public records, found by the same extraction.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dpray.data.records import Images
from dpray.data.splits import keyed_fraction
from dpray.errors import BadInput, unknown
from dpray.inversion.extraction import Extraction, extract
from dpray.inversion.public_models import PublicModel

Scale = Literal["diagonal", "whitened"]
_SALT = "dpray/latent-scale"


class LatentScale(nn.Module):
    """An affine map of latents and the way back; its numbers are buffers, so a release has them."""

    mean: Tensor  # (latent,)
    into: Tensor  # (latent, latent)
    back: Tensor  # (latent, latent), the inverse of `into`

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(latent))
        self.register_buffer("into", torch.eye(latent))
        self.register_buffer("back", torch.eye(latent))

    def to_unit(self, latents: Tensor) -> Tensor:
        """Public latents get mean 0 and about variance 1 in each coordinate. Record-local."""
        return (latents - self.mean) @ self.into

    def from_unit(self, units: Tensor) -> Tensor:
        return units @ self.back + self.mean


def public_scale(
    model: PublicModel,
    extraction: Extraction,
    public: Images,
    *,
    how: Scale = "diagonal",
    shrinkage: float = 0.1,
    most: int = 4000,
) -> LatentScale:
    """The scale of what `extraction` finds for public records, of at most so many of them."""
    # By a keyed order, not the first ones: files are often sorted by class.
    some = keyed_fraction(public.ids, _SALT).argsort(stable=True)[:most]
    return latent_scale(extract(model.module, public.pixels[some], extraction), how, shrinkage)


@torch.no_grad()
def latent_scale(
    public_latents: Tensor, scale: Scale = "diagonal", shrinkage: float = 0.1
) -> LatentScale:
    """`diagonal`: each coordinate by its deviation. `whitened`: each principal axis by its own.

    `shrinkage` is the share of the average variance in every variance: directions in which
    public latents hardly differ are not blown up, for private ones may differ there.
    """
    if scale not in get_args(Scale):
        raise unknown("scale of latents", scale, get_args(Scale))
    if not 0 <= shrinkage <= 1:
        raise BadInput(f"shrinkage {shrinkage:g} is not a share; choose from 0 to 1")
    if len(public_latents) < 2:
        raise BadInput("a scale of latents needs at least 2 public records")
    latents = public_latents.double()
    mean = latents.mean(0)
    covariance = (latents - mean).T @ (latents - mean) / (len(latents) - 1)
    if scale == "diagonal":
        variances, axes = covariance.diagonal(), torch.eye(len(covariance), dtype=torch.double)
    else:
        variances, axes = torch.linalg.eigh(covariance)
        variances, axes = variances.flip(0).clamp_min(0), axes.flip(1)  # the largest first
    average = variances.mean()
    average = average if average > 0 else torch.ones_like(average)
    # Where nothing at all is added, a direction without variance is left as it is.
    variances = (1 - shrinkage) * variances + shrinkage * average
    deviations = torch.where(variances > 1e-12 * average, variances, average).sqrt()
    made = LatentScale(len(mean))
    made.mean.copy_(mean)
    made.into.copy_(axes / deviations)
    made.back.copy_((axes * deviations).T)
    return made
