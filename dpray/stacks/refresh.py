"""All encoders brought up to the decoder, as pool tasks: the public schedule of DP2-VAE.

Every subset is refreshed, drawn or not, so what an encoder knows depends on its own records, on
decoders that were released and on the schedule. Private side: nothing is noised here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpray.pool import Pool
from dpray.stacks.contributions import Objective, SubsetObjective, Weights, adapted
from dpray.stacks.recipes import Recipe
from dpray.stacks.stack import Stack
from dpray.stacks.subsets import SubsetBatch, Subsets
from dpray.stacks.versions import EncoderVersions

Noise = Callable[[str, int, Tensor], Tensor]  # purpose, step, ids of records: latents for them


class Goal(Protocol):
    """Plain settings, which travel with a job, from which a worker makes an objective."""

    def objective(self, device: torch.device) -> SubsetObjective: ...


@dataclass(frozen=True)
class VaeGoal:
    recipe: Recipe
    kl_weight: float

    def objective(self, device: torch.device) -> Objective:
        return Objective(self.recipe.build(0).to(device), self.kl_weight)


@dataclass(frozen=True)
class RefreshSettings:
    goal: Goal
    steps: int
    lr: float
    block: int  # encoders of one task
    device: str


@dataclass(frozen=True, repr=False)
class RefreshJob:
    numbers: Tensor
    batch: SubsetBatch
    encoders: Stack
    noises: Tensor  # (steps, n, P, latent)
    settings: RefreshSettings


def refresh_block(job: RefreshJob, decoder: Weights) -> Stack:
    """The encoders of one block after some steps against `decoder`, on the CPU."""
    settings = job.settings
    device = torch.device(settings.device)
    new = adapted(
        settings.goal.objective(device),
        {name: value.to(device) for name, value in job.encoders.items()},
        {name: value.to(device) for name, value in decoder.items()},
        job.batch.to(device),
        lambda step: job.noises[step].to(device),
        steps=settings.steps,
        lr=settings.lr,
    )
    return {name: value.contiguous().cpu() for name, value in new.items()}


def refresh(
    subsets: Subsets,
    versions: EncoderVersions,
    pool: Pool,
    decoder: Weights,
    step: int,
    noise: Noise,
    settings: RefreshSettings,
    start: Callable[[Tensor], Stack] | None = None,
) -> None:
    """Writes version `step` of every encoder; what an interrupted refresh wrote is kept.

    They go on from the newest version, or from what `start` gives for subset numbers.
    """
    begin = versions.read if start is None else start
    done = versions.at(step).present()
    missing = torch.tensor([n for n in subsets.present.tolist() if n not in done]).long()
    blocks = subsets.by_size(missing).split(settings.block) if len(missing) else ()

    def jobs() -> Iterator[RefreshJob]:
        for numbers in blocks:
            batch = subsets.batch(numbers)
            turns = [noise(f"refresh {turn}", step, batch.ids) for turn in range(settings.steps)]
            noises = torch.stack(turns).cpu() if turns else torch.zeros(0)
            yield RefreshJob(numbers, batch, begin(numbers), noises, settings)

    public = {name: value.detach().cpu() for name, value in decoder.items()}
    gpus = 1 if settings.device != "cpu" else 0
    results = pool.map(refresh_block, jobs(), shared=public, gpus=gpus, label="refresh", quiet=True)
    for numbers, encoders in zip(blocks, results, strict=True):
        versions.write(numbers, encoders, step)
