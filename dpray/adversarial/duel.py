"""The loop of a private GAN: some steps of the critic, then one of the generator, again and again.

Only the critic's steps cost: the generator learns from the critic, which is public after every
step. What is released is a running average of the generator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dpray.adversarial.critic import set_critic_gradient
from dpray.adversarial.losses import LOSSES
from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.checks import above_zero, at_least_one
from dpray.contract import Run
from dpray.errors import BadInput
from dpray.privacy.queries import PaidQuery, PoissonGradients
from dpray.world import World

Scores = Callable[[Tensor], Tensor]
Snapshot = Callable[[int, nn.Module], None]


@dataclass(frozen=True)
class Duel:
    """What stays the same from step to step."""

    loss: str  # a name in LOSSES
    critic_steps: int  # for each of the generator
    num_fakes: int  # a step
    num_classes: int  # labels of generated examples are drawn evenly from these
    lr_critic: float
    lr_generator: float
    weight_clip: float  # wgan only: weights of the critic are kept within it
    averaging: float  # decay of the average of the generator's weights
    micro_batch: int
    betas: tuple[float, float] = (0.5, 0.9)  # of Adam
    critic_optimizer: Literal["adam", "sgd"] = "adam"
    lr_critic_left: float = 1.0  # at the last step, of the critic's rate: it falls evenly

    def check(self) -> None:
        """Refuses settings that cannot work."""
        at_least_one(self, "critic_steps", "num_fakes", "micro_batch")
        above_zero(self, "lr_critic", "lr_generator")
        if not self.weight_clip > 0:
            raise BadInput(f"weight_clip {self.weight_clip:g} must be above 0")
        for name in ("averaging", "lr_critic_left"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"{name} {getattr(self, name):g} must be at least 0 and at most 1")
        if self.averaging == 1:
            raise BadInput("averaging 1 would release the generator as it started: below 1")


def train_generator(
    generator: nn.Module,
    critic: nn.Module,
    kept_too: nn.Module,
    snapshot: Snapshot,
    real_scores: Scores,
    ids: Tensor,
    duel: Duel,
    run: Run,
    paid: PaidQuery[PoissonGradients],
    label: str,
) -> nn.Module:
    """The averaged generator after all critic steps that are paid for.

    `snapshot` hears the number of every finished step and the average so far, and may fill
    `kept_too`. `generator(labels, rng)` makes examples, `critic(examples, labels)` scores them and
    `real_scores` maps rows of the private records to their scores.

    Guarantee: step t asks for the one noisy gradient that `paid` names t. Labels of generated
    examples are uniform: those of private records are read for their own scores alone.
    """
    average = copy.deepcopy(generator)
    critic_optimizer = _critic_optimizer(critic, duel)
    generator_optimizer = torch.optim.Adam(
        generator.parameters(), lr=duel.lr_generator, betas=duel.betas
    )
    optimizers = (critic_optimizer, generator_optimizer)
    kept = {"generator": generator, "critic": critic, "average": average, "kept": kept_too}
    checkpoint = run.checkpoints.latest(label, ledger_heads=run.ledger.heads)
    first = 0
    if checkpoint is not None:
        unpack(checkpoint.tensors, kept, *optimizers)
        first = checkpoint.step
    loss, steps = LOSSES[duel.loss], paid.query.steps

    def save(done: int) -> None:
        tensors = pack(kept, *optimizers)
        run.checkpoints.save(label, Checkpoint(done, tensors, run.ledger.head))

    with run.progress(label, steps) as bar:
        bar.advance(first)
        bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
        for step in range(first, steps):
            with torch.no_grad():
                labels, fakes = _fakes(generator, duel, run.generator(f"fakes {step}"))

            def fake_losses(rows: Tensor, fakes: Tensor = fakes, labels: Tensor = labels) -> Tensor:
                return loss.fake(critic(fakes[rows], labels[rows]))

            set_critic_gradient(
                critic,
                lambda rows: loss.real(real_scores(rows)),
                fake_losses,
                duel.num_fakes,
                ids,
                step,
                paid=paid,
                key=run.key,
                world=run.world,
                micro_batch=duel.micro_batch,
            )
            lr = duel.lr_critic * (1 - (1 - duel.lr_critic_left) * step / steps)
            critic_optimizer.param_groups[0]["lr"] = lr
            critic_optimizer.step()
            if duel.loss == "wgan":
                _clamp(critic, duel.weight_clip)
            if (step + 1) % duel.critic_steps == 0:
                rng = run.generator(f"generator {step}")
                _set_generator_gradient(generator, critic, duel, rng, run.world)
                generator_optimizer.step()
                move_average(average, generator, step // duel.critic_steps, duel.averaging)
            snapshot(step + 1, average)
            bar.advance()
            if run.checkpoints.due():
                save(step + 1)
    # Saved whatever the time: what follows must never be computed twice by other arithmetic.
    save(steps)
    return average


def _critic_optimizer(critic: nn.Module, duel: Duel) -> torch.optim.Optimizer:
    if duel.critic_optimizer == "sgd":
        return torch.optim.SGD(critic.parameters(), lr=duel.lr_critic)
    return torch.optim.Adam(critic.parameters(), lr=duel.lr_critic, betas=duel.betas)


def _fakes(generator: nn.Module, duel: Duel, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randint(duel.num_classes, (duel.num_fakes,), generator=rng)
    fakes: Tensor = generator(labels, rng)
    return labels.to(fakes.device), fakes


def _set_generator_gradient(
    generator: nn.Module, critic: nn.Module, duel: Duel, rng: torch.Generator, world: World
) -> None:
    """Every rank scores its share of the same examples; the sum over ranks is the gradient."""
    labels, fakes = _fakes(generator, duel, rng)
    losses = LOSSES[duel.loss].generator(critic(fakes, labels))
    params = list(generator.parameters())
    pieces = torch.autograd.grad(losses[world.rank :: world.size].sum() / duel.num_fakes, params)
    total = world.sum(torch.cat([piece.flatten() for piece in pieces]))
    for p, piece in zip(params, total.split([p.numel() for p in params]), strict=True):
        p.grad = piece.view(p.shape)


@torch.no_grad()
def _clamp(critic: nn.Module, bound: float) -> None:
    for name, p in critic.named_parameters():
        if name.endswith("weight"):
            p.clamp_(-bound, bound)
