"""How far images may be bent when they are drawn: asked of the records, and paid for.

Digits bear a lot of bending, garments hardly any, and nothing public says which are which. A small
network is trained on the draws of each of a few released generators that differ in how far they
bend, every draw seen once, as whoever uses them would; how many records it gets right is a noisy
count, one a generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from dpray.contract import Run
from dpray.data.records import Images, TrainingData
from dpray.models.batches import in_batches
from dpray.models.generators import Shape
from dpray.models.yardsticks import cnn
from dpray.privacy.mechanisms import noisy_sum
from dpray.privacy.queries import GaussianSum, PaidQuery

SHARE = 0.02  # of the budget, in squared Gaussian terms, for whoever asks
_STEPS, _BATCH = 470, 256  # 120,000 draws
_LEARNING_RATE = 4e-3


@dataclass(frozen=True)
class Asked:
    """What all generators are asked about: private, so it stays with this run's workers."""

    records: Images
    num_classes: int
    seed: int


def sensitivity(num_generators: int) -> float:
    """Of all counts together: a record moves every one by at most one."""
    return math.sqrt(num_generators)


def raw_correct(generator: nn.Module, asked: Asked) -> int:
    """How many records a network gets right that was trained on draws of a released generator."""
    records = asked.records
    if len(records) == 0:  # a worker may have none
        return 0
    channels, height, width = records.pixels.shape[1:]
    network = _trained_on_draws(generator, (channels, height, width), asked)
    found = in_batches(network, records.pixels, _BATCH, torch.device("cpu")).argmax(1)
    return int((found == records.labels).sum())


def _trained_on_draws(generator: nn.Module, shape: Shape, asked: Asked) -> nn.Module:
    """Knows released images alone."""
    rng = torch.Generator().manual_seed(asked.seed)
    # Initial weights and dropout draw from the global generator: it is lent, not taken over.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(asked.seed)
        network = cnn(shape, asked.num_classes)
        optimizer = torch.optim.Adam(network.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, _LEARNING_RATE, total_steps=_STEPS
        )
        for _ in range(_STEPS):
            labels = torch.randint(asked.num_classes, (_BATCH,), generator=rng)
            with torch.no_grad():
                draws = generator(labels, rng).clamp(0, 1)
            optimizer.zero_grad()
            F.cross_entropy(network(draws), labels).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def best_of(
    generators: Sequence[nn.Module],
    data: TrainingData,
    run: Run,
    paid: PaidQuery[GaussianSum],
) -> int:
    """Which of the released `generators` has the highest noisy count.

    Guarantee: the networks know released generators alone, so a record moves each count by at
    most one and all of them by a vector of norm at most `sensitivity(len(generators))`, which
    `paid` must have. The counts stay here; the choice follows from the noisy ones.
    """

    def release() -> torch.Tensor:
        asked = Asked(data.private, data.num_classes, run.seed)
        on_cpu = [generator.cpu() for generator in generators]
        raw = run.pool.map(raw_correct, on_cpu, shared=asked, label="bending")
        return noisy_sum(torch.tensor(list(raw)), paid=paid, key=run.key, world=run.world)

    return int(run.once("bending", release).argmax())
