"""How far apart two gradients of a network are: row by row, by angle.

Of every weight tensor, each output unit's gradient is one row. Only directions count, so a noisy
gradient that is too long by its noise is still matched where it points.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_SMALLEST_NORM = 1e-6


def matched_weights(network: nn.Module) -> list[nn.Parameter]:
    """The weights whose gradients are compared: matrices and kernels.

    Biases and scales of a normalisation have no rows to compare. They are left out of the
    private query too: they would use up the clip norm and take noise for nothing.
    """
    return [weight for weight in network.parameters() if weight.dim() >= 2]


def row_distance(target: Sequence[Tensor], gradient: Sequence[Tensor]) -> Tensor:
    """The sum over all rows of one minus the cosine between them."""
    total = torch.zeros((), device=gradient[0].device)
    for wanted, own in zip(target, gradient, strict=True):
        wanted, own = wanted.flatten(1), own.flatten(1)
        norms = wanted.norm(dim=1) * own.norm(dim=1)
        total = total + (1 - (wanted * own).sum(1) / (norms + _SMALLEST_NORM)).sum()
    return total
