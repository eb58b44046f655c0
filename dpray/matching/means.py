"""Images whose mean features, class by class, are those that the private records have, noisily.

The mean features of every class are one Gaussian release, under all random networks at once; moving
images towards it is post-processing and may take as long as one likes. Features of records are
taken by the pool, a network each.
Shapes: N records, S classes, M networks, F features a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.embeddings import COUNT, means_of
from dpray.models.random_features import RandomFeatures
from dpray.privacy.mechanisms import bounded_slot_sums, noisy_sum
from dpray.privacy.queries import GaussianSum, PaidQuery


class Records(NamedTuple):
    """What all jobs share: private, so it stays with this run's workers."""

    pixels: Tensor
    labels: Tensor
    num_classes: int
    bound: float
    device: str


@torch.no_grad()
def raw_class_sums(network: RandomFeatures, records: Records) -> Tensor:
    """(S, F): what the records of each class add up to under one network, before the noise.

    Guarantee: a record adds a vector of norm at most `records.bound` to one class.
    """
    device = torch.device(records.device)
    network = network.to(device)

    def features(rows: Tensor) -> Tensor:
        return records.bound * network(records.pixels[rows].to(device))

    return bounded_slot_sums(
        features,
        records.labels,
        num_slots=records.num_classes,
        dimension=network.num_features,
        bound=records.bound,
    )


def noisy_class_means(
    data: TrainingData,
    networks: Sequence[RandomFeatures],
    run: Run,
    paid: PaidQuery[GaussianSum],
) -> list[Tensor]:
    """For each network (S, F): the mean features of every class, from one noisy release.

    Guarantee: under each of M networks a record has a vector of norm at most 1 / sqrt(M), so it
    adds one of norm one at most, and `COUNT` beside it, all to its class: the sensitivity that
    `paid` must have. Networks are public: random weights, centres of released draws.
    """
    bound = 1 / math.sqrt(len(networks))

    def release() -> Tensor:
        private = data.private
        records = Records(private.pixels, private.labels, data.num_classes, bound, str(run.device))
        raw_sums = run.pool.map(
            raw_class_sums,
            networks,
            shared=records,
            gpus=0.0 if run.device.type == "cpu" else 1.0,
            label="mean features",
        )
        raw_counts = torch.bincount(private.labels, minlength=data.num_classes).double()
        raw = torch.cat([*raw_sums, COUNT * raw_counts.unsqueeze(1)], 1)
        return noisy_sum(raw, paid=paid, key=run.key, world=run.world)

    means, _ = means_of(run.once("class features", release), data.num_records)
    sizes = [network.num_features for network in networks]
    return [(one / bound).float() for one in means.split(sizes, 1)]


def distance(network: RandomFeatures, images: Tensor, target: Tensor) -> Tensor:
    """How far the mean features of every class are from `target`, squared, over all classes.

    `images` are as many of each class, class by class.
    """
    means = network(images).unflatten(0, (len(target), -1)).mean(1)
    return (means - target).square().sum()
