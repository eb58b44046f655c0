"""The private half of model inversion: what learns the distribution of private latents.

Both learners see *units*, latents of private records scaled by public statistics, and touch them in
`noisy_gradient` alone, on Poisson batches. A unit depends on its own record and on nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpray.adversarial.duel import Duel, train_generator
from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Run
from dpray.models.latent_models import (
    Activation,
    LatentCritic,
    LatentDecoder,
    LatentHistory,
    LatentVae,
)
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.preflight import preflight
from dpray.privacy.queries import PaidQuery, PoissonGradients

_STAGE = "learner"


@dataclass(frozen=True)
class Units:
    """Private: this rank's share."""

    values: Tensor  # (N, D)
    labels: Tensor  # (N,) places among the classes the learner is given
    ids: Tensor


@dataclass(frozen=True)
class VaeLearner:
    """VaeGM: a variational autoencoder of units, of which the decoder is released."""

    hidden: int
    activation: Activation
    kl_weight: float
    lr: float  # of Adam, at first; it falls to nothing over the steps
    averaging: float
    micro_batch: int

    def check(self, decoder: LatentDecoder, size: int, run: Run) -> None:
        """The pre-flight, on random units: nothing private is read before the ledger is paid."""
        model = self._model(decoder, size)
        rng = run.generator("preflight")
        units, noise = torch.randn(4, size, generator=rng), torch.randn(4, decoder.noise)
        labels = torch.zeros(4, dtype=torch.long)
        preflight(
            model,
            lambda rows: model.example_losses(
                units[rows], labels[rows], noise[rows], self.kl_weight
            ),
        )

    def fit(
        self,
        decoder: LatentDecoder,
        history: LatentHistory,
        units: Units,
        run: Run,
        paid: PaidQuery[PoissonGradients],
    ) -> LatentDecoder:
        """Starts from `decoder` and returns the trained one; `history` is filled on the way."""
        with _public_draws(run):
            model = self._model(decoder, units.values.shape[1]).to(run.device)
        average = copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        kept = {"model": model, "average": average, "history": history}
        checkpoint = run.checkpoints.latest(_STAGE, ledger_heads=run.ledger.heads)
        first = 0
        if checkpoint is not None:
            unpack(checkpoint.tensors, kept, optimizer)
            first = checkpoint.step
        steps = paid.query.steps
        with run.progress("latents", steps) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, steps):
                optimizer.param_groups[0]["lr"] = self.lr * (1 - step / steps)
                self._set_gradient(model, units, step, run, paid)
                optimizer.step()
                move_average(average, model, step, self.averaging)
                history.take(step + 1, steps, average.decoder)
                bar.advance()
                if run.checkpoints.due():
                    tensors = pack(kept, optimizer)
                    run.checkpoints.save(_STAGE, Checkpoint(step + 1, tensors, run.ledger.head))
        # Saved whatever the time: what follows must never be computed twice by other arithmetic.
        run.checkpoints.save(_STAGE, Checkpoint(steps, pack(kept, optimizer), run.ledger.head))
        return average.decoder

    def _model(self, decoder: LatentDecoder, size: int) -> LatentVae:
        return LatentVae(decoder, size, self.hidden, self.activation)

    def _set_gradient(
        self,
        model: LatentVae,
        units: Units,
        step: int,
        run: Run,
        paid: PaidQuery[PoissonGradients],
    ) -> None:
        def example_losses(rows: Tensor) -> Tensor:
            # By record id: a replay on other workers must give everyone the same draw.
            ids = units.ids[rows]
            noise = run.key.record_normals("latents", step, ids, model.decoder.noise)
            return model.example_losses(
                units.values[rows].to(run.device),
                units.labels[rows].to(run.device),
                noise.to(run.device),
                self.kl_weight,
            )

        noisy_gradient(
            model,
            example_losses,
            units.ids,
            step,
            paid=paid,
            key=run.key,
            world=run.world,
            micro_batch=self.micro_batch,
        )


@dataclass(frozen=True)
class GanLearner:
    """DP-GAN: the critic of units asks noisy gradients, the generator is released."""

    loss: Literal["wgan", "bce"]
    hidden: int  # of the critic
    critic_steps: int
    num_fakes: int
    lr_critic: float
    lr_generator: float
    weight_clip: float
    averaging: float
    label_scale: float
    micro_batch: int

    def check(self, decoder: LatentDecoder, size: int, run: Run) -> None:
        critic = self._critic(decoder, size)
        units = torch.randn(4, size, generator=run.generator("preflight"))
        labels = torch.zeros(4, dtype=torch.long)
        preflight(critic, lambda rows: critic(units[rows], labels[rows]))

    def fit(
        self,
        decoder: LatentDecoder,
        history: LatentHistory,
        units: Units,
        run: Run,
        paid: PaidQuery[PoissonGradients],
    ) -> LatentDecoder:
        with _public_draws(run):
            critic = self._critic(decoder, units.values.shape[1]).to(run.device)
        duel = Duel(
            loss=self.loss,
            critic_steps=self.critic_steps,
            num_fakes=self.num_fakes,
            num_classes=max(decoder.num_classes, 1),
            lr_critic=self.lr_critic,
            lr_generator=self.lr_generator,
            weight_clip=self.weight_clip,
            averaging=self.averaging,
            micro_batch=self.micro_batch,
        )

        def real_scores(rows: Tensor) -> Tensor:
            scores: Tensor = critic(
                units.values[rows].to(run.device), units.labels[rows].to(run.device)
            )
            return scores

        trained = train_generator(
            decoder.to(run.device),
            critic,
            history,
            lambda done, average: history.take(done, paid.query.steps, average),
            real_scores,
            units.ids,
            duel,
            run,
            paid,
            _STAGE,
        )
        assert isinstance(trained, LatentDecoder)
        return trained

    def _critic(self, decoder: LatentDecoder, size: int) -> LatentCritic:
        return LatentCritic(size, decoder.num_classes, self.hidden, self.label_scale)


@contextmanager
def _public_draws(run: Run) -> Iterator[None]:
    """Initial weights by the public seed alone, whoever drew before: the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.generator("learner").initial_seed())
        yield
