"""Entropic optimal transport between two weighted sets of points, in the log domain.

Feydy et al. 2019, https://arxiv.org/abs/1810.08278: Sinkhorn's iterations while the blur falls from
the size of the largest cost to the wanted one, so that a few dozen suffice also where the wanted
one is tiny. Nothing here is noised. Shapes: n and m points of D numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def costs(left: Tensor, right: Tensor, absolute: float) -> Tensor:
    """(n, m): squared distances plus `absolute` times the sums of absolute differences."""
    squares = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * left @ right.T
    if absolute == 0:
        return squares
    return squares + absolute * torch.cdist(left, right, p=1)


@torch.no_grad()
def transport_plan(
    cost: Tensor, left_weights: Tensor, right_weights: Tensor, *, blur: float, iterations: int
) -> Tensor:
    """(n, m): how much of each left point goes to each right one, after so many iterations.

    Weights are at least 0 and add up to 1 on either side. The mass on the right is exact, that on
    the left as good as the iterations made it.
    """
    log_left, log_right = left_weights.log(), right_weights.log()
    first = max(float(cost.max()), blur)
    left, right = cost.new_zeros(len(cost)), cost.new_zeros(cost.shape[1])
    for turn in range(iterations):
        # Down to the wanted blur in three quarters of the time, the last quarter at it.
        fallen = min(1.0, turn / max(1, round(0.75 * iterations)))
        width = first * math.exp(fallen * math.log(blur / first))
        left = -width * ((right - cost) / width + log_right).logsumexp(1)
        right = -width * ((left[:, None] - cost) / width + log_left[:, None]).logsumexp(0)
    logs = (left[:, None] + right - cost) / blur + log_left[:, None] + log_right
    return logs.exp()


def transport_gradient(
    points: Tensor,
    weights: Tensor,
    targets: Tensor,
    target_weights: Tensor,
    *,
    absolute: float,
    blur: float,
    iterations: int,
) -> Tensor:
    """(n, D): by the points, of the entropic cost of moving them to the targets.

    By the envelope theorem the plan may stay as it is while the points move.
    """
    leaf = points.detach().requires_grad_()
    cost = costs(leaf, targets, absolute)
    plan = transport_plan(cost.detach(), weights, target_weights, blur=blur, iterations=iterations)
    (gradient,) = torch.autograd.grad((plan * cost).sum(), leaf)
    return gradient
