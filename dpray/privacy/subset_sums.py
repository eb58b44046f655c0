"""The noisy mean over drawn subsets: draw, clip, sum, all-reduce, noise.

A subset's contribution is one vector, clipped as a whole: a change of one record may change all
of it, so there is nothing to gain from clipping records. Names say the side of the noise: `raw_`,
`clipped_` before, `noisy_` after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dpray.errors import BadInput
from dpray.privacy.gradients import clip_factors
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery
from dpray.privacy.subset_queries import SubsetSums
from dpray.world import SOLO, World

_CPU = torch.device("cpu")


def drawn_subsets(query: SubsetSums, key: RunKey, step: int, subsets: Tensor) -> Tensor:
    """Which of the local `subsets` (their numbers, int64) step `step` draws. Reads no record.

    Guarantee: whether a subset is drawn depends on the key, the query's name, the step and the
    subset's own number, never on records, on other steps or on how ranks share the subsets. The
    draws are secret: unless the query is charged for known draws, they must not be logged, nor
    leave a trace in anything that a later contribution depends on.
    """
    check_numbers(subsets, query.num_subsets)
    purpose = f"{query.name}/draw"
    if query.sampling == "all-subsets":
        return subsets
    if query.sampling == "one-of-k":
        # One uniform number that all ranks agree on; 2^64 hardly minds not being a multiple of K.
        bits = int(key.uniform_bits(purpose, step, torch.zeros(1, dtype=torch.int64))[0])
        return subsets[subsets == (bits * query.num_subsets) >> 64]
    return subsets[key.poisson_rows(purpose, step, subsets, query.sample_rate)]


def noisy_subset_mean(
    contributions: Callable[[Tensor], Iterable[Tensor]],
    subsets: Tensor,
    step: int,
    *,
    dimension: int,
    paid: PaidQuery[SubsetSums],
    key: RunKey,
    world: World = SOLO,
    device: torch.device = _CPU,
    vectors: int = 1,
) -> Tensor:
    """The noisy mean contribution of the subsets that step `step` draws: flat, in float64.

    `contributions` maps the numbers of the drawn local subsets to matrices of `dimension`
    columns, one row for each subset, in as many pieces as memory wants. A subset without records
    may be left out. Every rank must call, also one that holds no subset; each subset is held by
    one rank. A row may be made of several `vectors` of one length that are clipped one by one,
    where as many are charged for.

    Guarantee: the release is (sum of rows, each vector of norm at most `clip_norm`, + noise of
    standard deviation `noise_multiplier * clip_norm`) divided by the public `expected_subsets`,
    over the subsets that the key draws. A vector that is not finite counts as exactly zero; a step
    that draws nothing releases noise. Noise enters once, after the sum over ranks, and is the same
    on all of them.

    The caller must keep this: the row of a subset is a function of the records of that subset,
    of what was released before, of the step, and of randomness that has nothing to do with the
    draws. It must be the same whether or not the subset, or any other, was drawn before. With
    `remembers_draws` it may also depend on the draws of that one subset, as through a model that
    was trained whenever it was drawn; never on a state that several subsets share and private
    records have touched (an optimiser's moments, running statistics, a model), unless every
    subset joins every step.
    """
    paid.check(step)
    query = paid.query
    if query.vectors_per_draw != vectors or dimension % vectors:
        raise BadInput(
            f"{query.name!r} is charged for {query.vectors_per_draw} vectors per draw; "
            f"a noisy subset mean gives away {vectors}"
        )
    drawn = drawn_subsets(query, key, step, subsets)
    clipped_sum = torch.zeros(dimension, dtype=torch.float64, device=device)
    num_rows = 0
    for raw_rows in contributions(drawn):
        if raw_rows.dim() != 2 or raw_rows.shape[1] != dimension:
            raise BadInput(
                f"contributions must be matrices of {dimension} columns, one row a drawn subset"
            )
        num_rows += len(raw_rows)
        if num_rows > len(drawn):  # how many were drawn is secret: the message does not say
            raise BadInput(
                "there are more contributions than drawn subsets: one row for each drawn subset "
                "and no more, for a subset that contributes twice breaks the bound"
            )
        raw_vectors = raw_rows.detach().to(device).unflatten(1, (vectors, dimension // vectors))
        for place, clipped in enumerate(clipped_sum.split(dimension // vectors)):
            clipped.add_(_clipped_rows_sum(raw_vectors[:, place], query.clip_norm))
    clipped_sum = world.sum(clipped_sum)
    if query.noise_multiplier > 0.0 and world.is_first:
        noise = key.normals(f"{query.name}/noise", step, dimension).to(device)
        noisy_sum = noise.mul_(query.noise_multiplier * query.clip_norm).add_(clipped_sum)
    else:
        noisy_sum = clipped_sum  # other ranks take the first one's; without noise: not private
    return world.share(noisy_sum).div_(query.expected_subsets)


def _clipped_rows_sum(raw_rows: Tensor, clip_norm: float) -> Tensor:
    """The sum of the rows, each scaled to norm at most `clip_norm`, in float64: NOT noised.

    Guarantee: a row adds a vector of norm at most `clip_norm` (to 1e-6), exactly zero where it is
    not finite.
    """
    wide = raw_rows.double()
    norms = torch.linalg.vector_norm(wide, dim=1)
    kept = norms.isfinite()  # zero times infinity is not zero: those rows leave the sum
    if not bool(kept.all()):
        wide, norms = wide[kept], norms[kept]
    return clip_factors(norms, clip_norm) @ wide


def check_numbers(subsets: Tensor, num_subsets: int) -> None:
    """Refuses subset numbers of which one is none, or is there twice."""
    if subsets.dim() != 1 or subsets.dtype != torch.int64:
        raise BadInput(f"subset numbers are one row of int64, not {subsets.dtype} {subsets.shape}")
    out_of_range = bool(((subsets < 0) | (subsets >= num_subsets)).any())
    if out_of_range or len(subsets.unique()) != len(subsets):
        raise BadInput(
            f"subset numbers must be different ones from 0 to {num_subsets - 1}: "
            "a subset that is held twice would contribute twice"
        )
