"""Releases other than gradients: sums over records, noised once.

`noisy_sum` adds the noise to a sum whose sensitivity its caller vouches for. The two others bound
each record themselves: `noisy_slot_sums` adds every record's vector to one slot (its class, or its
cell of a class; `bounded_slot_sums` is that sum before the noise), `noisy_second_moment` adds up
outer products; `slot_moments.py` does both at once. What is no sum of records at all is clipped as
a whole, in `groups.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpray.errors import BadInput
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum, PaidQuery
from dpray.world import SOLO, World

_BLOCK = 2000  # records in memory at once


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


def noisy_slot_sums(
    vectors: Callable[[Tensor], Tensor],
    slots: Tensor,
    *,
    num_slots: int,
    dimension: int,
    paid: PaidQuery[GaussianSum],
    key: RunKey,
    world: World = SOLO,
) -> Tensor:
    """(num_slots, dimension): for every slot the noisy sum of the vectors of its records.

    `vectors` maps row numbers of the local records to one vector (a row) each; `slots` says for
    each record which slot it goes to.

    Guarantee: a record adds one vector, to one slot, scaled down to norm `paid.query.sensitivity`
    where it is longer and left out where it is not finite. `vectors` must be record-local: a
    record's vector depends on that record and on public things alone.
    """
    # Refused before a record is read, though `noisy_sum` counts the step.
    if paid.query.steps != 1:
        raise BadInput(f"{paid.query.name!r} is one release, not {paid.query.steps}")
    raw_sums = bounded_slot_sums(
        vectors, slots, num_slots=num_slots, dimension=dimension, bound=paid.query.sensitivity
    )
    return noisy_sum(raw_sums, paid=paid, key=key, world=world)


def bounded_slot_sums(
    vectors: Callable[[Tensor], Tensor],
    slots: Tensor,
    *,
    num_slots: int,
    dimension: int,
    bound: float,
) -> Tensor:
    """(num_slots, dimension): what local records add up to, before the noise. Private.

    Guarantee: a record adds one vector, to one slot, scaled down to norm `bound` where it is
    longer and left out where it is not finite. For a sum that is made in several parts.
    """
    raw_sums = torch.zeros(num_slots, dimension, dtype=torch.float64)
    if len(slots) == 0:  # a worker may have no record, and not every network takes no image
        return raw_sums
    for rows in torch.arange(len(slots)).split(_BLOCK):
        within = bounded(vectors(rows), bound)
        raw_sums.index_add_(0, slots[rows], within.cpu())
    return raw_sums


def noisy_second_moment(
    vectors: Callable[[Tensor], Tensor],
    num_rows: int,
    dimension: int,
    *,
    paid: PaidQuery[GaussianSum],
    key: RunKey,
    world: World = SOLO,
) -> Tensor:
    """(dimension, dimension): the noisy sum of the outer products of the records' vectors.

    Guarantee: a vector is scaled down to norm r where it is longer, with r the root of
    `paid.query.sensitivity`, so its outer product has Frobenius norm at most r squared. The
    upper triangle is released, off-diagonal entries times the root of two: the norm of what is
    released is then that of the whole matrix, and no entry is released twice.
    """
    bound = paid.query.sensitivity**0.5
    raw = torch.zeros(dimension, dimension, dtype=torch.float64)
    for rows in torch.arange(num_rows).split(_BLOCK):
        within = bounded(vectors(rows), bound)
        raw += (within.T @ within).cpu()
    noisy = noisy_sum(upper_triangle(raw), paid=paid, key=key, world=world)
    return from_upper_triangle(noisy, dimension)


def upper_triangle(symmetric: Tensor) -> Tensor:
    """The last two dimensions as one vector whose norm is the Frobenius norm of the matrix."""
    row, column = _upper(symmetric.shape[-1])
    return symmetric[..., row, column] * _weights(row, column).to(symmetric)


def from_upper_triangle(values: Tensor, dimension: int) -> Tensor:
    """The symmetric matrix that `upper_triangle` came from."""
    row, column = _upper(dimension)
    entries = values / _weights(row, column).to(values)
    matrix = values.new_zeros(*values.shape[:-1], dimension, dimension)
    matrix[..., row, column] = entries
    matrix[..., column, row] = entries
    return matrix


def _upper(dimension: int) -> tuple[Tensor, Tensor]:
    row, column = torch.triu_indices(dimension, dimension)
    return row, column


def _weights(row: Tensor, column: Tensor) -> Tensor:
    return torch.full(row.shape, 2.0, dtype=torch.float64).sqrt().masked_fill(row == column, 1.0)


def bounded(vectors: Tensor, bound: float) -> Tensor:
    """Rows in float64, of norm at most `bound`; zero where they are not finite."""
    wide = vectors.detach().double()
    norms = wide.norm(dim=1, keepdim=True)
    factors = (bound / norms.clamp(min=1e-300)).clamp(max=1.0)
    return torch.where(norms.isfinite(), wide, 0.0) * torch.where(norms.isfinite(), factors, 0.0)
