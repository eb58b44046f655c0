"""Releases other than gradients: sums over records, noised once."""

from __future__ import annotations

from torch import Tensor

from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum, PaidQuery
from dpray.world import SOLO, World


def noisy_sum(
    raw_sum: Tensor,
    *,
    paid: PaidQuery[GaussianSum],
    key: RunKey,
    step: int = 0,
    world: World = SOLO,
) -> Tensor:
    """The sum over all workers' records plus Gaussian noise, in float64.

    Guarantee: where one record moves the sum by a vector of norm at most
    `paid.query.sensitivity`, the result is one Gaussian of the paid noise multiplier. The
    noise is keyed by the query and the step and is added once, after the sum over workers.
    """
    paid.check(step)
    query = paid.query
    total = world.sum(raw_sum.double())
    if world.is_first:
        noise = key.normals(f"{query.name}/noise", step, total.numel()).reshape(total.shape)
        total = total + noise.to(total.device) * (query.noise_multiplier * query.sensitivity)
    return world.share(total)
