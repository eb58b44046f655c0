"""The loop of Private Set Generation: ask a fresh network's noisy gradient, move the images to it.

Private data are touched in `noisy_gradient` alone, once a step and paid for in advance. Networks,
the distance, the images and the training of networks on them are public or post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.matching.distance import matched_weights
from dpray.matching.images import LearntImages
from dpray.matching.schedule import Schedule
from dpray.matching.step import set_matching_gradient, train_on_images
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.queries import PaidQuery, PoissonGradients

_STAGE = "match"


@dataclass(frozen=True)
class Matching:
    """What stays the same from step to step."""

    schedule: Schedule
    make_network: Callable[[], nn.Module]
    lr_images: float  # at first
    final_lr: float  # the share of it that is left at the end
    lr_network: float
    micro_batch: int
    matched: Tensor  # rows of the images that are learnt
    trained_on: Tensor  # rows of the images that networks are trained on

    def lr(self, step: int) -> float:
        return self.lr_images * (1 - (1 - self.final_lr) * step / self.schedule.steps)


def match(
    images: LearntImages,
    optimizer: torch.optim.Optimizer,
    kept: nn.Module,
    snapshot: Callable[[int], None],
    matching: Matching,
    data: TrainingData,
    run: Run,
    paid: PaidQuery[PoissonGradients],
) -> None:
    """Learns `images`. `snapshot` hears the number of every finished step and may fill `kept`.

    Guarantee: step t asks for the one noisy gradient that `paid` names t, whatever came before.
    """
    schedule = matching.schedule
    network = fresh_network(matching, run, 0)
    first = _restore(images, network, kept, optimizer, run)
    with run.progress("psg", schedule.steps) as bar:
        bar.advance(first)
        bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
        for step in range(first, schedule.steps):
            if schedule.starts_network(step):
                network = fresh_network(matching, run, schedule.iteration(step))
            weights = matched_weights(network)
            target = _asked(network, weights, step, matching.micro_batch, data, run, paid)
            optimizer.param_groups[0]["lr"] = matching.lr(step)
            for _ in range(schedule.pixel_steps):
                set_matching_gradient(network, weights, target, images, matching.matched, run.world)
                optimizer.step()
                images.settle()
            snapshot(step + 1)
            if schedule.trains_network(step):
                rows = matching.trained_on
                train_on_images(
                    network,
                    images.all()[rows],
                    images.labels[rows],
                    epochs=schedule.inner,
                    lr=matching.lr_network,
                    rng=run.generator(f"network training {step}"),
                    world=run.world,
                )
            bar.advance()
            if run.checkpoints.due():
                _save(images, network, kept, optimizer, run, step + 1)
    # Saved whatever the time: what follows must never be computed twice by other arithmetic.
    _save(images, network, kept, optimizer, run, schedule.steps)


def fresh_network(matching: Matching, run: Run, iteration: int) -> nn.Module:
    """A new network, the same on every rank: its weights follow from the public seed."""
    draws = run.generator(f"network {iteration}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draws.initial_seed())
        return matching.make_network().to(run.device)


def _asked(
    network: nn.Module,
    weights: Sequence[nn.Parameter],
    step: int,
    micro_batch: int,
    data: TrainingData,
    run: Run,
    paid: PaidQuery[PoissonGradients],
) -> list[Tensor]:
    """The noisy gradient of step `step`: the one place where private records are read."""
    private = data.private

    def example_losses(rows: Tensor) -> Tensor:
        pixels, labels = private.pixels[rows].to(run.device), private.labels[rows].to(run.device)
        return F.cross_entropy(network(pixels), labels, reduction="none")

    noisy_gradient(
        network,
        example_losses,
        private.ids,
        step,
        paid=paid,
        key=run.key,
        world=run.world,
        micro_batch=micro_batch,
        parameters=weights,
    )
    noisy = [weight.grad for weight in weights if weight.grad is not None]
    for weight in weights:
        weight.grad = None
    return noisy


def _save(
    images: LearntImages,
    network: nn.Module,
    kept: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Run,
    step: int,
) -> None:
    tensors = pack({"images": images, "network": network, "kept": kept}, optimizer)
    run.checkpoints.save(_STAGE, Checkpoint(step, tensors, run.ledger.head))


def _restore(
    images: LearntImages,
    network: nn.Module,
    kept: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Run,
) -> int:
    """The step to go on from: after the last whole checkpoint, or the first."""
    checkpoint = run.checkpoints.latest(_STAGE, ledger_heads=run.ledger.heads)
    if checkpoint is None:
        return 0
    unpack(checkpoint.tensors, {"images": images, "network": network, "kept": kept}, optimizer)
    return checkpoint.step
