"""How well a public model shows images it was not trained on, after how many steps.

For figures and for the error that is reported: of public held-out images, never of private ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor

from dpray.inversion.extraction import Extraction, extract, record_errors
from dpray.inversion.public_models import PublicModel


@dataclass(frozen=True, eq=False)
class Reconstructions:
    steps: int
    pixels: Tensor  # (N, C, H, W), in the order of the images
    error: float  # mean squared error per pixel


def public_reconstructions(
    model: PublicModel, extraction: Extraction, public_pixels: Tensor, steps: Iterable[int]
) -> list[Reconstructions]:
    """One for each number of steps, each an extraction of its own with that many steps."""
    made = []
    for number in steps:
        own = replace(extraction, steps=number)
        latents = extract(model.module, public_pixels, own)
        error = record_errors(model.module, latents, public_pixels).mean().item()
        made.append(Reconstructions(number, model.decode(latents), error))
    return made
