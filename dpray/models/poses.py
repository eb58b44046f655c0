"""How an image's mass lies in its frame, and the image as it is without that.

Handwriting differs in slant, size and place more than in what is written. Seen upright and of one
size images of a class have far more in common, so that fewer numbers tell more of them; how each
lies is five numbers beside its pixels. Record-local, and nothing here is learnt.
Shapes: N images, C channels, H, W pixels, D = C * H * W.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dpray.models.generators import Shape

NUMBERS = 5  # across, down, log width, log height, slant
_DEVIATION = 0.45  # of the mass of an upright image, in halves of its frame
_SMALLEST = 1e-3  # mass, and squared deviation
_STEEPEST = 1.2
_NARROWEST = 5.0  # logarithm of how much
# What the five weigh beside pixels, per root of a pixel: about what a change of them does to those.
_WEIGHTS = (0.29, 0.29, 0.14, 0.14, 0.11)


def upright_with_poses(images: Tensor) -> Tensor:
    """(N, D + 5): every image upright, and how it lay. An image without mass lies in the middle."""
    if len(images) == 0:  # a worker may have no record
        return images.new_zeros(0, math.prod(images.shape[1:]) + NUMBERS)
    poses = _poses_of(images)
    across, down, width, height, slant = poses.T
    width, height = width.exp(), height.exp()
    zero = torch.zeros_like(width)
    upright = _moved(images, [[width, slant * height, across], [zero, height, down]])
    return torch.cat([upright.flatten(1), poses * _weights(images)], 1)


def drawn_in_pose(vectors: Tensor, shape: Shape) -> Tensor:
    """(N, C, H, W): what `upright_with_poses` was made of, but for what two samplings blur."""
    upright = vectors[:, :-NUMBERS].reshape(-1, *shape)
    poses = vectors[:, -NUMBERS:] / _weights(upright)
    across, down, width, height, slant = poses.T
    width, height = (one.clamp(min=-_NARROWEST).exp() for one in (width, height))
    zero = torch.zeros_like(width)
    left = (slant * down - across) / width
    return _moved(upright, [[1 / width, -slant / width, left], [zero, 1 / height, -down / height]])


def _poses_of(images: Tensor) -> Tensor:
    """(N, 5): from the mean and the covariance of where the mass is."""
    mass = images.sum(1)
    total = mass.sum((1, 2)).clamp(min=_SMALLEST)
    rows, columns = (
        ((torch.arange(size, device=images.device) + 0.5) / size * 2 - 1).to(images)
        for size in mass.shape[1:]
    )
    across = (mass.sum(1) * columns).sum(1) / total
    down = (mass.sum(2) * rows).sum(1) / total
    beside, below = columns - across.unsqueeze(1), rows - down.unsqueeze(1)
    wide = (mass.sum(1) * beside.square()).sum(1) / total
    high = ((mass.sum(2) * below.square()).sum(1) / total).clamp(min=_SMALLEST)
    both = torch.einsum("nyx,ny,nx->n", mass, below, beside) / total
    slant = (both / high).clamp(-_STEEPEST, _STEEPEST)
    width = (wide - slant * both).clamp(min=_SMALLEST)
    sizes = [0.5 * (one / _DEVIATION**2).log() for one in (width, high)]
    return torch.stack([across, down, *sizes, slant], 1)


def _moved(images: Tensor, maps: list[list[Tensor]]) -> Tensor:
    """Every image sampled through its own map from places in the result to places in it."""
    theta = torch.stack([torch.stack(row, 1) for row in maps], 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _weights(images: Tensor) -> Tensor:
    return math.sqrt(math.prod(images.shape[1:])) * torch.tensor(_WEIGHTS).to(images)
