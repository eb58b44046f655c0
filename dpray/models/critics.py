"""Critics of Wasserstein GANs: images or latents to one number each, which may be any number.

No sigmoid at the end, which would bound what the loss takes for a distance, and no BatchNorm,
with which a number would depend on the rest of its batch. Weights start at random: equal ones
would keep all hidden units equal for ever.
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from dpray.models.generators import Shape

_SLOPE = 0.2  # of LeakyReLU below zero


class FcCritic(nn.Module):
    """`layers` hidden layers of `hidden` units."""

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        widths = [inputs, *([hidden] * layers)]
        inner: list[nn.Module] = []
        for few, many in pairwise(widths):
            inner += [nn.Linear(few, many), nn.LeakyReLU(_SLOPE)]
        self.layers = nn.Sequential(*inner, nn.Linear(widths[-1], 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, ...) to (N,)."""
        return self.layers(inputs.flatten(1)).squeeze(1)


class ConvCritic(nn.Module):
    """Convolutions that halve the maps, then a linear layer."""

    def __init__(self, shape: Shape, maps: int = 32, layers: int = 2) -> None:
        super().__init__()
        channels, height, width = shape
        inner: list[nn.Module] = []
        for _ in range(layers):
            inner += [nn.Conv2d(channels, maps, 3, stride=2, padding=1), nn.LeakyReLU(_SLOPE)]
            channels, height, width = maps, -(-height // 2), -(-width // 2)
        self.layers = nn.Sequential(*inner)
        self.head = nn.Linear(math.prod((channels, height, width)), 1)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) to (N,)."""
        return self.head(self.layers(images).flatten(1)).squeeze(1)
