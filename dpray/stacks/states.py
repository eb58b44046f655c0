"""Where the encoder of a drawn subset comes from, and what it remembers.

Amplification by sampling holds where the contribution of a subset depends on its records, on what
was released and on the step, and not on when it was drawn before. Every state says itself whether
it remembers draws, and the query that is paid for is made from that. All of it is private side.
What is said here of encoders and of the decoder they face holds for other networks of subsets, and
for whatever public tensors these face.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from dpray.pool import Pool
from dpray.privacy.noise import RunKey
from dpray.stacks.contributions import SubsetObjective, Weights, adapted
from dpray.stacks.refresh import RefreshSettings, refresh
from dpray.stacks.stack import Stack
from dpray.stacks.subsets import SubsetBatch, Subsets
from dpray.stacks.versions import EncoderVersions


@dataclass(frozen=True)
class Latents:
    """Latent noise, a function of the key, the step and the record: a replay draws the same."""

    key: RunKey
    size: int
    device: torch.device

    def __call__(self, purpose: str, step: int, ids: Tensor) -> Tensor:
        flat = self.key.record_normals(purpose, step, ids.flatten().cpu(), self.size)
        return flat.reshape(*ids.shape, self.size).to(self.device)


@dataclass
class Frozen:
    """The encoders stay as stage 1 left them."""

    remembers_draws: ClassVar[bool] = False
    changes_encoders: ClassVar[bool] = False  # of those that are stored

    versions: EncoderVersions
    checkpoints: list[int] = field(default_factory=list, kw_only=True)  # steps of the last two

    def start(self, step: int) -> None:
        """Forgets what an interrupted run did after the checkpoint of `step`."""
        self.versions.forget_after(step)

    def before(self, step: int, decoder: Weights) -> None:
        """Called before every step, with the decoder that the one before it released."""

    def reads_until(self, step: int, steps: int) -> int:
        """The step before which the encoders of all steps from `step` on can be read ahead."""
        return steps

    def read(self, numbers: Tensor) -> Stack:
        return self.versions.read(numbers)

    def at_use(
        self, numbers: Tensor, encoders: Weights, batch: SubsetBatch, decoder: Weights, step: int
    ) -> Weights:
        """The encoders that a step uses, made from those that were read."""
        return encoders

    def keep(self, step: int) -> None:
        """Called before the checkpoint of `step` is written: what it needs must be there then."""

    def kept(self, step: int) -> None:
        """Called after it was written, to clear away what nobody can go back to any more."""
        # The checkpoint before it may still be gone back to, so what that one needs stays.
        self.checkpoints = [*self.checkpoints[-1:], step]
        if len(self.checkpoints) == 2:
            self.versions.prune(self.checkpoints[0])


@dataclass
class Ephemeral(Frozen):
    """A copy of the stored encoder takes a few steps against the decoder, is used, and goes."""

    objective: SubsetObjective
    latents: Latents
    adapt_steps: int
    adapt_lr: float

    def at_use(
        self, numbers: Tensor, encoders: Weights, batch: SubsetBatch, decoder: Weights, step: int
    ) -> Weights:
        return adapted(
            self.objective,
            encoders,
            decoder,
            batch,
            lambda turn: self.latents(f"adapt {turn}", step, batch.ids),
            steps=self.adapt_steps,
            lr=self.adapt_lr,
        )


@dataclass
class Scheduled(Frozen):
    """All encoders are brought up to the decoder every so many steps, drawn or not."""

    changes_encoders: ClassVar[bool] = True

    latents: Latents
    subsets: Subsets
    pool: Pool
    every: int
    settings: RefreshSettings

    def before(self, step: int, decoder: Weights) -> None:
        if step > 0 and step % self.every == 0:
            refresh(
                self.subsets, self.versions, self.pool, decoder, step, self.latents, self.settings
            )

    def reads_until(self, step: int, steps: int) -> int:
        return min(steps, (step // self.every + 1) * self.every)


@dataclass
class Selected(Ephemeral):
    """The paper's: an encoder is trained whenever its subset is drawn, and so remembers draws."""

    remembers_draws: ClassVar[bool] = True
    changes_encoders: ClassVar[bool] = True

    changed: dict[int, Stack] = field(default_factory=dict, kw_only=True)

    def reads_until(self, step: int, steps: int) -> int:
        return step + 1

    def read(self, numbers: Tensor) -> Stack:
        stored = self.versions.read(numbers)
        for place, number in enumerate(numbers.tolist()):
            for name, value in self.changed.get(number, {}).items():
                stored[name][place] = value
        return stored

    def at_use(
        self, numbers: Tensor, encoders: Weights, batch: SubsetBatch, decoder: Weights, step: int
    ) -> Weights:
        new = super().at_use(numbers, encoders, batch, decoder, step)
        for place, number in enumerate(numbers.tolist()):
            self.changed[number] = {name: value[place].cpu().clone() for name, value in new.items()}
        return new

    def keep(self, step: int) -> None:
        if self.changed:
            numbers = torch.tensor(sorted(self.changed))
            rows = [self.changed[number] for number in numbers.tolist()]
            self.versions.write(
                numbers, {name: torch.stack([row[name] for row in rows]) for name in rows[0]}, step
            )
            self.changed.clear()


STATES: dict[str, type[Frozen]] = {
    "ephemeral": Ephemeral,
    "scheduled": Scheduled,
    "frozen": Frozen,
    "selected": Selected,
}


def make_state(
    name: str,
    versions: EncoderVersions,
    subsets: Subsets,
    latents: Latents,
    pool: Pool,
    *,
    adapting: RefreshSettings,
    refreshing: RefreshSettings,
    every: int,
) -> Frozen:
    """The state of that name: `adapting` is what a drawn encoder does, `refreshing` all of them.

    All are refreshed before every `every`-th step, where the state says so at all.
    """
    kind = STATES[name]
    if issubclass(kind, Ephemeral):
        objective = adapting.goal.objective(latents.device)
        return kind(versions, objective, latents, adapting.steps, adapting.lr)
    if issubclass(kind, Scheduled):
        return kind(versions, latents, subsets, pool, every, refreshing)
    return kind(versions)


def spaced(steps: int, refreshes: int) -> int:
    """How many steps lie between `refreshes` that are spread evenly over `steps`."""
    return max(1, math.ceil(steps / (refreshes + 1)))
