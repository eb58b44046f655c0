"""The augmentation with which Private Set Generation trains on its small synthetic sets.

Each image is shifted, scaled or rotated, one of the three at random, and what comes in from
outside takes the mean colour of the batch. All are one affine map, so a batch is one sampling.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_SHIFT = 4  # pixels: padding by four, then a crop of the old size
_SCALE = 0.2
_DEGREES = 45.0


def augment(images: Tensor, rng: torch.Generator) -> Tensor:
    """A changed copy of `images` (N, C, H, W); `rng` is on the CPU and decides everything."""
    maps = _affine_maps(len(images), images.shape[2], images.shape[3], rng).to(images)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    mean = images.mean(dim=(0, 2, 3), keepdim=True)
    # Outside is zero to grid_sample, and zero is the mean of what is sampled.
    return F.grid_sample(images - mean, grid, align_corners=False) + mean


def _affine_maps(count: int, height: int, width: int, rng: torch.Generator) -> Tensor:
    """For each image the 2x3 map from a place in the result to the place it is taken from."""
    maps = torch.eye(2, 3).repeat(count, 1, 1)
    kind = torch.randint(3, (count,), generator=rng)
    shift, scale, turn = (kind == k for k in range(3))

    for axis, size in enumerate((width, height)):
        most = min(_SHIFT, size // 4)  # a tiny image must not be moved out of sight
        pixels = torch.randint(-most, most + 1, (count,), generator=rng)
        maps[shift, axis, 2] = (pixels * 2 / size)[shift]  # the grid runs from -1 to 1
        factor = 1 + (torch.rand(count, generator=rng) * 2 - 1) * _SCALE
        maps[scale, axis, axis] = 1 / factor[scale]

    angle = (torch.rand(count, generator=rng) * 2 - 1)[turn] * math.radians(_DEGREES)
    maps[turn, 0, 0] = maps[turn, 1, 1] = angle.cos()
    maps[turn, 0, 1] = -angle.sin() * height / width  # a rotation in pixels, not in the grid
    maps[turn, 1, 0] = angle.sin() * width / height
    return maps
