"""A variational autoencoder trained on noisy gradients: the loop that several methods share.

Private records are touched in `noisy_gradient` alone, on Poisson batches. What a method calls a
label is its own affair: a class, a cell of a class, or nothing at all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Run, Synthesizer
from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.models.autoencoders import VariationalAutoencoder
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.preflight import preflight
from dpray.privacy.queries import PaidQuery, PoissonGradients

_STAGE = "train"


def refuse_settings(method: Any, *, whole: Collection[str], positive: Collection[str]) -> None:
    """Settings of `method` that no training can have, besides those that all of them share."""
    for name in ("latent", "hidden", "batch_size", "micro_batch", *whole):
        if getattr(method, name) < 1:
            raise BadInput(f"{name} {getattr(method, name)} must be at least 1")
    for name in ("epochs", "clip_norm", "lr", *positive):
        if not 0 < getattr(method, name) < math.inf:
            raise BadInput(f"{name} {getattr(method, name):g} must be above 0")
    if not 0 <= method.averaging < 1 or not 0 <= method.kl_weight < math.inf:
        raise BadInput("averaging must be at least 0 and below 1, kl_weight at least 0")


@dataclass(frozen=True, kw_only=True)
class VaeTraining:
    name: str  # what a progress bar calls it
    latent: int
    kl_weight: float
    lr: float  # of Adam, at first; it falls to nothing over the steps
    averaging: float  # decay of the average of the weights
    micro_batch: int

    @classmethod
    def of(cls, method: Any) -> VaeTraining:
        """As the settings of a method say, which have the names of the fields here."""
        fields = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(method, name) for name in fields})

    def check(
        self,
        model: VariationalAutoencoder,
        shape: tuple[int, int, int],
        num_labels: int,
        run: Run,
        *,
        allowed_buffers: Collection[str] = (),
    ) -> None:
        """The pre-flight, on random inputs: nothing private is read before the ledger is paid."""
        rng = run.generator("preflight")
        images = torch.rand(4, *shape, generator=rng).to(run.device)
        labels = torch.randint(num_labels, (4,), generator=rng).to(run.device)
        noise = torch.randn(4, self.latent, generator=rng).to(run.device)

        def random_losses(rows: Tensor) -> Tensor:
            return model.example_losses(images[rows], labels[rows], noise[rows], self.kl_weight)

        preflight(model, random_losses, allowed_buffers=allowed_buffers)

    def train(
        self,
        model: VariationalAutoencoder,
        average: VariationalAutoencoder,
        records: Images,
        run: Run,
        paid: PaidQuery[PoissonGradients],
        so_far: Callable[[], Synthesizer] | None = None,
    ) -> None:
        """Trains `model` for all steps that were paid; `average` is what to release of it.

        `so_far` gives what would be released by now, where the training may be looked at.
        """
        steps = paid.query.steps
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        kept = {"model": model, "average": average}
        checkpoint = run.checkpoints.latest(_STAGE, ledger_heads=run.ledger.heads)
        first = 0
        if checkpoint is not None:
            unpack(checkpoint.tensors, kept, optimizer)
            first = checkpoint.step
        with run.progress(self.name, steps) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, steps):
                # Down to nothing: late steps hold as much noise as early ones and less news.
                optimizer.param_groups[0]["lr"] = self.lr * (1 - step / steps)
                self._set_gradient(model, records, step, run, paid)
                optimizer.step()
                move_average(average, model, step, self.averaging)
                bar.advance()
                if so_far is not None:
                    run.look(step + 1, steps, so_far)
                if run.checkpoints.due():
                    tensors = pack(kept, optimizer)
                    run.checkpoints.save(_STAGE, Checkpoint(step + 1, tensors, run.ledger.head))
        # Saved whatever the time: what follows must never be computed twice by other arithmetic.
        run.checkpoints.save(_STAGE, Checkpoint(steps, pack(kept, optimizer), run.ledger.head))

    def _set_gradient(
        self,
        model: VariationalAutoencoder,
        records: Images,
        step: int,
        run: Run,
        paid: PaidQuery[PoissonGradients],
    ) -> None:
        def example_losses(rows: Tensor) -> Tensor:
            # By record id: a replay on other workers must give everyone the same draw.
            noise = run.key.record_normals("latents", step, records.ids[rows], self.latent)
            return model.example_losses(
                records.pixels[rows].to(run.device),
                records.labels[rows].to(run.device),
                noise.to(run.device),
                self.kl_weight,
            )

        noisy_gradient(
            model,
            example_losses,
            records.ids,
            step,
            paid=paid,
            key=run.key,
            world=run.world,
            micro_batch=self.micro_batch,
        )
