"""Count, mean and second moment of every slot's records, as one noisy sum.

The same as `noisy_slot_sums` of each record's (w1 u, w2 uu', w3), without a vector of that length
for every record: second moments are products of matrices. Shapes: N records, S slots, K directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpray.errors import BadInput
from dpray.privacy.mechanisms import bounded, noisy_sum, upper_triangle
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum, PaidQuery
from dpray.world import SOLO, World

_BLOCK = 2000  # records in memory at once


def noisy_slot_moments(
    points: Callable[[Tensor], Tensor],
    slots: Tensor,
    *,
    num_slots: int,
    dimension: int,
    weights: Sequence[float],
    paid: PaidQuery[GaussianSum],
    key: RunKey,
    world: World = SOLO,
) -> Tensor:
    """(S, K + K (K + 1) / 2 + 1): noisy sums of points, of their products, and of ones.

    `points` maps row numbers of the local records to one point (a row) each; `slots` says for each
    record which slot it goes to; `weights` are what a point, its products and its one are
    multiplied with. Products are laid out by `upper_triangle`.

    Guarantee: with u its point, scaled down to norm one where it is longer, a record adds
    (w1 u, w2 uu', w3) to one slot, of norm at most that of the weights, which must be at most
    `paid.query.sensitivity`; where u is not finite it adds nothing. `points` must be record-local.
    """
    if paid.query.steps != 1:
        raise BadInput(f"{paid.query.name!r} is one release, not {paid.query.steps}")
    longest = math.hypot(*weights)
    if longest > paid.query.sensitivity * (1 + 1e-9):
        raise BadInput(
            f"weights of norm {longest:g} need a sensitivity as large, not "
            f"{paid.query.sensitivity:g}"
        )
    of_mean, of_second, of_count = weights
    raw_means = torch.zeros(num_slots, dimension, dtype=torch.float64)
    raw_seconds = torch.zeros(num_slots, dimension, dimension, dtype=torch.float64)
    raw_counts = torch.zeros(num_slots, 1, dtype=torch.float64)
    for slot in slots.unique().tolist():
        for rows in (slots == slot).nonzero().squeeze(1).split(_BLOCK):
            raw = points(rows)
            within = bounded(raw, 1.0).cpu()
            raw_means[slot] += within.sum(0)
            raw_seconds[slot] += within.T @ within
            raw_counts[slot] += raw.double().norm(dim=1).isfinite().sum().cpu()
    raw_sums = torch.cat(
        [of_mean * raw_means, of_second * upper_triangle(raw_seconds), of_count * raw_counts], 1
    )
    return noisy_sum(raw_sums, paid=paid, key=key, world=world)
