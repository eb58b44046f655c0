"""How far the images of a set may be bent when they are drawn: asked of the records, and paid for.

Digits bear a lot of bending, garments hardly any, and nothing public says which are which. A small
network is trained on draws of the released images at each of a few strengths, every one seen once,
as whoever uses them would; how many records it gets right is a noisy count, one a strength.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.contract import Run
from dpray.data.records import Images, TrainingData
from dpray.models.batches import in_batches
from dpray.models.warped_sets import warped
from dpray.models.yardsticks import cnn
from dpray.privacy.mechanisms import noisy_sum
from dpray.privacy.queries import GaussianSum, PaidQuery

STRENGTHS = (0.4, 1.0, 2.0)
SENSITIVITY = math.sqrt(len(STRENGTHS))  # a record moves every count by at most one
_STEPS, _BATCH = 470, 256  # 120,000 draws
_LEARNING_RATE = 4e-3


@dataclass(frozen=True)
class Asked:
    """What all strengths share: private, so it stays with this run's workers."""

    images: Tensor  # released
    labels: Tensor
    records: Images
    num_classes: int
    seed: int


def raw_correct(strength: float, asked: Asked) -> int:
    """How many records a network gets right that was trained on draws bent by `strength`."""
    records = asked.records
    if len(records) == 0:  # a worker may have none
        return 0
    network = _trained_on_draws(strength, asked)
    found = in_batches(network, records.pixels, _BATCH, torch.device("cpu")).argmax(1)
    return int((found == records.labels).sum())


def _trained_on_draws(strength: float, asked: Asked) -> nn.Module:
    """Knows released images alone."""
    rng = torch.Generator().manual_seed(asked.seed)
    channels, height, width = asked.images.shape[1:]
    # Initial weights and dropout draw from the global generator: it is lent, not taken over.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(asked.seed)
        network = cnn((channels, height, width), asked.num_classes)
        optimizer = torch.optim.Adam(network.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, _LEARNING_RATE, total_steps=_STEPS
        )
        for _ in range(_STEPS):
            rows = torch.randint(len(asked.images), (_BATCH,), generator=rng)
            draws = warped(asked.images[rows], strength, rng)
            optimizer.zero_grad()
            F.cross_entropy(network(draws), asked.labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def best_strength(
    images: Tensor, labels: Tensor, data: TrainingData, run: Run, paid: PaidQuery[GaussianSum]
) -> float:
    """The strength of `STRENGTHS` with the highest noisy count.

    Guarantee: the networks know released images alone, so a record moves each count by at most
    one and all of them by a vector of norm at most `SENSITIVITY`, which `paid` must have. The
    counts stay here; the strength follows from the noisy ones.
    """

    def release() -> Tensor:
        asked = Asked(images.cpu(), labels.cpu(), data.private, data.num_classes, run.seed)
        raw = run.pool.map(raw_correct, STRENGTHS, shared=asked, label="bending")
        return noisy_sum(torch.tensor(list(raw)), paid=paid, key=run.key, world=run.world)

    noisy_counts = run.once("bending", release)
    return STRENGTHS[int(noisy_counts.argmax())]
