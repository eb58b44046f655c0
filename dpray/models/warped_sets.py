"""A set of images of which every draw is bent a little: any number of images from a few.

A draw picks an image of its label and turns, scales, shears, shifts and bends it at random, some
draws hardly and some as much as the set allows. That is a setting and knows nothing of the data.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models.generators import Shape, rows_of

# At strength one, in radians and in units of half an image; the bend is one of a coarse grid.
_TURN, _SCALE, _SHEAR, _SHIFT, _BEND = 0.2, 0.12, 0.2, 0.1, 0.06
_BENDS = 5  # places of that grid along a side


class WarpedSet(nn.Module):
    images: Tensor  # (N, C, H, W)
    labels: Tensor  # (N,)

    def __init__(self, shape: Shape, num_images: int, warp: float) -> None:
        super().__init__()
        self.warp = warp
        self.register_buffer("images", torch.zeros(num_images, *shape))
        self.register_buffer("labels", torch.zeros(num_images, dtype=torch.long))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        return warped(self.images[rows_of(labels, self.labels, rng)], self.warp, rng)


def warped(images: Tensor, most: float, rng: torch.Generator) -> Tensor:
    """A changed copy of `images` (N, C, H, W), each at a strength of its own from 0 to `most`.

    `rng` is on the CPU and decides everything.
    """
    count, _, height, width = images.shape
    strength = most * torch.rand(count, generator=rng)

    def within(reach: float) -> Tensor:
        return strength * reach * (2 * torch.rand(count, generator=rng) - 1)

    angle, shear = within(_TURN), within(_SHEAR)
    across, down = 1 + within(_SCALE), 1 + within(_SCALE)
    maps = torch.stack(
        [
            torch.stack([across * angle.cos(), shear - angle.sin(), within(_SHIFT)], 1),
            torch.stack([angle.sin(), down * angle.cos(), within(_SHIFT)], 1),
        ],
        1,
    )
    grid = F.affine_grid(maps.to(images), list(images.shape), align_corners=False)
    bends = _BEND * torch.randn(count, 2, _BENDS, _BENDS, generator=rng)
    bends = strength.reshape(-1, 1, 1, 1) * bends
    smooth = F.interpolate(bends, size=(height, width), mode="bicubic", align_corners=False)
    grid = grid + smooth.permute(0, 2, 3, 1).to(images)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False).clamp(0, 1)
