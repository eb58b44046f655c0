"""Images whose mean features, slot by slot, are those that the private records have, noisily.

A slot is a class or a cell of a class. The mean features of every slot are one Gaussian release,
under all random networks at once; moving images towards it is post-processing and may take as long
as one likes. Features of records are taken by the pool, a network each.
Shapes: N records, S slots, M networks, F features a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.embeddings import COUNT, counts_of, means_of
from dpray.models.random_features import RandomFeatures
from dpray.privacy.mechanisms import bounded_slot_sums, noisy_sum
from dpray.privacy.queries import GaussianSum, PaidQuery


class Records(NamedTuple):
    """What all jobs share: private, so it stays with this run's workers."""

    pixels: Tensor
    slots: Tensor  # (N,)
    num_slots: int
    bound: float
    device: str


@torch.no_grad()
def raw_slot_sums(network: RandomFeatures, records: Records) -> Tensor:
    """(S, F): what the records of each slot add up to under one network, before the noise.

    Guarantee: a record adds a vector of norm at most `records.bound` to one slot.
    """
    device = torch.device(records.device)
    network = network.to(device)

    def features(rows: Tensor) -> Tensor:
        return records.bound * network(records.pixels[rows].to(device))

    return bounded_slot_sums(
        features,
        records.slots,
        num_slots=records.num_slots,
        dimension=network.num_features,
        bound=records.bound,
    )


@dataclass(frozen=True)
class Released:
    """What the records of each slot have in common, and about how many there are."""

    means: list[Tensor]  # for each network (S, F)
    counts: Tensor  # (S,), at least a tenth of an even share


def noisy_slot_means(
    data: TrainingData,
    slots: Tensor,
    num_slots: int,
    networks: Sequence[RandomFeatures],
    run: Run,
    paid: PaidQuery[GaussianSum],
) -> Released:
    """The mean features of every slot, and its count, from one noisy release.

    `slots` says for each record of this rank to which slot it belongs.

    Guarantee: under each of M networks a record has a vector of norm at most 1 / sqrt(M), so it
    adds one of norm one at most, and `COUNT` beside it, all to its slot: the sensitivity that
    `paid` must have. Networks are public: random weights, centres of released draws. The slot of a
    record must depend on that record and on public things alone.
    """
    bound = 1 / math.sqrt(len(networks))

    def release() -> Tensor:
        records = Records(data.private.pixels, slots, num_slots, bound, str(run.device))
        raw_sums = run.pool.map(
            raw_slot_sums,
            networks,
            shared=records,
            gpus=0.0 if run.device.type == "cpu" else 1.0,
            label="mean features",
        )
        raw_counts = torch.bincount(slots, minlength=num_slots).double()
        raw = torch.cat([*raw_sums, COUNT * raw_counts.unsqueeze(1)], 1)
        return noisy_sum(raw, paid=paid, key=run.key, world=run.world)

    sums = run.once("class features", release)
    means, _ = means_of(sums, data.num_records)
    sizes = [network.num_features for network in networks]
    counts = counts_of(sums, data.num_records)
    return Released([(one / bound).float() for one in means.split(sizes, 1)], counts)


def distance(network: RandomFeatures, images: Tensor, slots: Tensor, target: Tensor) -> Tensor:
    """How far the mean features of every slot are from `target`, squared, over all images.

    A slot counts by how many of the `images` are its own; `slots` says which they are. Divided by
    the images of a class this is the sum over classes, where a class is one slot.
    """
    counts = torch.bincount(slots, minlength=len(target)).to(target).unsqueeze(1)
    features = network(images)
    sums = torch.zeros_like(target).index_add(0, slots.to(target.device), features)
    return ((sums / counts.clamp(min=1) - target).square() * counts).sum()
