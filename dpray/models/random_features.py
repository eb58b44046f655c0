"""Features of images under convolutions with random weights: never trained, so public.

Three strided convolutions; the maps after the second and the third are the features. Around a
public centre each map is scaled to norm one: what all images share is taken out, and the norm that
a record may have is all left for what tells images apart. Record-local: no layer mixes examples.
Shapes: N images, C channels, H, W pixels, F features.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models.generators import Shape

_KERNELS = (5, 3, 3)
_FIRST = 1  # the first convolution whose map is a feature
_BIAS = 0.1
_TINY = 1e-6  # a map of nothing is left as it is


class RandomFeatures(nn.Module):
    """Images in [0, 1] to (N, F) of norm at most one."""

    centre: Tensor  # (F,), public

    def __init__(self, shape: Shape, width: int, rng: torch.Generator) -> None:
        super().__init__()
        channels, height, side = shape
        sizes: list[int] = []
        for place, kernel in enumerate(_KERNELS):
            out = width if place == 0 else 2 * width
            weight = torch.randn(out, channels, kernel, kernel, generator=rng)
            self.register_buffer(f"weight{place}", weight * math.sqrt(2 / weight[0].numel()))
            self.register_buffer(f"bias{place}", _BIAS * torch.randn(out, generator=rng))
            channels, height, side = out, -(-height // 2), -(-side // 2)
            if place >= _FIRST:
                sizes.append(out * height * side)
        self.sizes = tuple(sizes)
        self.register_buffer("centre", torch.zeros(sum(sizes)))

    @property
    def num_features(self) -> int:
        return sum(self.sizes)

    @torch.no_grad()
    def centre_on(self, images: Tensor) -> None:
        """Takes the mean features of `images`, which must be public, for the centre."""
        self.centre.zero_()
        total = torch.zeros_like(self.centre)
        for part in images.split(500):
            total += torch.cat([_unit(one) for one in self._maps(part)], 1).sum(0)
        self.centre.copy_(total / len(images))

    def forward(self, images: Tensor) -> Tensor:
        centres = self.centre.split(list(self.sizes))
        parts = [
            _unit(_unit(one) - centre)
            for one, centre in zip(self._maps(images), centres, strict=True)
        ]
        return torch.cat(parts, 1) / math.sqrt(len(parts))

    def _maps(self, images: Tensor) -> list[Tensor]:
        """The maps that are features, flat."""
        maps, found = self._first(images), []
        for place in range(1, len(_KERNELS)):
            weight, bias = self.get_buffer(f"weight{place}"), self.get_buffer(f"bias{place}")
            maps = F.relu(F.conv2d(maps, weight, bias, stride=2, padding=weight.shape[-1] // 2))
            if place >= _FIRST:
                found.append(maps.flatten(1))
        return found

    def _first(self, images: Tensor) -> Tensor:
        """The first convolution, as a matrix product of patches.

        On a processor that takes half the time of a convolution of so few channels, there and back.
        """
        weight, bias = self.get_buffer("weight0"), self.get_buffer("bias0")
        size = weight.shape[-1]
        around = size // 2
        patches = F.pad(images, (around, around, around, around)).unfold(2, size, 2)
        patches = patches.unfold(3, size, 2).permute(0, 2, 3, 1, 4, 5)
        count, height, width = patches.shape[:3]
        rows = patches.reshape(count * height * width, -1)
        maps = F.relu(torch.addmm(bias, rows, weight.flatten(1).T))
        return maps.reshape(count, height, width, -1).permute(0, 3, 1, 2)


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=_TINY)
