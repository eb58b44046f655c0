"""The noisy vector of a whole sample: draw, gather, clip once, noise.

For what is no sum over records, such as a gradient of an optimal transport between those drawn and
images of a generator: one record may change all of it, so all of it is clipped as one. Names say
the side of the noise: `raw_`, `clipped_` before, `noisy_` after.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.privacy.gradients import clip_factors
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGroups
from dpray.world import SOLO, World


def noisy_group_vector(
    vector: Callable[[Images], Tensor],
    records: Images,
    step: int,
    *,
    dimension: int,
    paid: PaidQuery[PoissonGroups],
    key: RunKey,
    world: World = SOLO,
) -> Tensor:
    """The noisy vector of the records that step `step` draws: flat, in float64, on the CPU.

    `vector` maps the drawn records, those of all ranks in the order of their ids, to one vector of
    `dimension` numbers. It is not asked when nobody is drawn: the release is then noise. Every
    rank must call, also one without records.

    Guarantee: the release is a vector of norm at most `clip_norm`, exactly zero where the raw one
    is not finite, plus noise of standard deviation `noise_multiplier * sensitivity`, with the
    `sensitivity` of twice the clip that the query derives. `vector` may depend on the drawn
    records, on what is public and on what was released before, never on other records or draws.
    `dimension` is public. Drawn records go to every rank, which is on the private side, and no
    further. Noise enters once and is the same on all ranks.
    """
    paid.check(step)
    query = paid.query
    rows = key.poisson_rows(f"{query.name}/batch", step, records.ids, query.sample_rate)
    drawn = _gathered(records[rows], world)
    if len(drawn):
        clipped = _clipped_whole(vector(drawn), query.clip_norm, dimension)
    else:
        clipped = torch.zeros(dimension, dtype=torch.float64)
    if query.noise_multiplier > 0.0:
        noise = key.normals(f"{query.name}/noise", step, dimension)
        noisy = noise.mul_(query.noise_multiplier * query.sensitivity).add_(clipped)
    else:
        noisy = clipped  # the query's event says that this is not private
    # Processors may differ in the last bit: all ranks take rank 0's vector.
    return world.share(noisy)


def _clipped_whole(raw_vector: Tensor, clip_norm: float, dimension: int) -> Tensor:
    """One vector scaled to norm at most `clip_norm` (to 1e-6), in float64: NOT noised.

    Guarantee: exactly zero where it is not finite; refused where its length is not the public one.
    """
    if raw_vector.numel() != dimension:
        raise BadInput(f"the vector of a group must hold {dimension} numbers, which are public")
    wide = raw_vector.detach().flatten().double().cpu()
    norm = torch.linalg.vector_norm(wide)
    if not bool(norm.isfinite()):  # zero times infinity is not zero
        return torch.zeros_like(wide)
    return clip_factors(norm, clip_norm) * wide


def _gathered(own: Images, world: World) -> Images:
    """The records of all ranks, in the order of their ids."""
    ids = _rows_of_all(own.ids, world)
    order = ids.argsort()
    pixels, labels = _rows_of_all(own.pixels, world), _rows_of_all(own.labels, world)
    return Images(pixels[order], labels[order], ids[order])


def _rows_of_all(own: Tensor, world: World) -> Tensor:
    """Every rank's rows below each other: a sum of tables in which every rank fills its own part,
    so that numbers are copied and nothing is rounded."""
    if world.size == 1:
        return own
    counts = torch.zeros(world.size, dtype=torch.int64)
    counts[world.rank] = len(own)
    counts = world.sum(counts)
    start = int(counts[: world.rank].sum())
    table = own.new_zeros(int(counts.sum()), *own.shape[1:])
    table[start : start + len(own)] = own
    return world.sum(table) if len(table) else table
