"""AuGM: an autoencoder trained under privacy; public images passed through it are the release.

DP-AuGM of Chen et al. (2018), https://arxiv.org/abs/1812.02274: who holds public images of the same
kind pushes them through what was learnt from private ones. Private data are touched in
`noisy_gradient` alone, on Poisson batches. The labels of what comes out are those of the public
images: labels of private records are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpray import models
from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.checks import above_zero, at_least_one, below_one
from dpray.contract import Run, Synthesizer, public_of, refuse_one_class
from dpray.data.records import Images, TrainingData
from dpray.data.splits import keyed_fraction
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.passed_through import PassedThrough
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.preflight import preflight
from dpray.privacy.queries import (
    PaidQuery,
    PoissonGradients,
    gradients_at_noise,
    steps_of_epochs,
)

_STAGE = "train"


@register("augm")
@dataclass(frozen=True, kw_only=True)
class Augm:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "public images passed through a privately trained autoencoder"
    paper: ClassVar[str] = "Chen et al. 2018"
    public_data: ClassVar[Literal["classes", "labelling"]] = "labelling"
    can_be_looked_at: ClassVar[bool] = True

    latent: int = 32
    hidden: int = 128
    images_per_class: int = 1000  # public ones that travel with the release
    batch_size: int = 2048  # expected: batches are Poisson samples
    epochs: float = 40
    clip_norm: float = 1.0
    lr: float = 4e-3  # of Adam, at first; it falls to nothing over the steps
    averaging: float = 0.98
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        public = public_of(data, "augm")
        if public.class_names != data.class_names:
            raise BadInput(
                f"augm needs public images of the private classes {', '.join(data.class_names)}; "
                f"{public.name} has {', '.join(public.class_names)}"
            )
        at_least_one(self, "latent", "hidden", "images_per_class", "batch_size", "micro_batch")
        above_zero(self, "epochs", "clip_norm", "lr")
        below_one(self, "averaging")
        seen = public.images.labels.unique().tolist()
        lacking = [name for label, name in enumerate(data.class_names) if label not in seen]
        if lacking:
            raise BadInput(f"{public.name} has no image of class {lacking[0]}")

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        inputs = self._inputs(public_of(data, "augm").images, data.num_classes)
        arguments = {
            "shape": list(data.shape),
            "latent": self.latent,
            "hidden": self.hidden,
            "num_inputs": len(inputs),
        }
        torch.manual_seed(run.seed)
        model, average = self._build(arguments, run), self._build(arguments, run)
        average.load_state_dict(model.state_dict())
        _check_model(model, data, run)
        query = run.world.from_first(lambda: self._query(data, run))
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        run.facts["declared"] = {
            "inside the release": f"{len(inputs):,} images of {public_of(data, 'augm').name}, as "
            "they are"
        }

        def so_far() -> Synthesizer:
            average.inputs.copy_((inputs.pixels * 255).round())
            average.labels.copy_(inputs.labels)
            return Synthesizer(
                model="passed-through",
                arguments=arguments,
                module=average.eval(),
                class_names=data.class_names,
                shape=data.shape,
            )

        self._train(model, average, so_far, data, run, paid)
        return so_far()

    def _build(self, arguments: dict[str, object], run: Run) -> PassedThrough:
        module = models.build("passed-through", **arguments)
        assert isinstance(module, PassedThrough)
        return module.to(run.device)

    def _inputs(self, images: Images, num_classes: int) -> Images:
        """Of every class so many public images, by a keyed order: files are often sorted."""
        order = keyed_fraction(images.ids, "dpray/augm").argsort(stable=True)
        labels = images.labels[order]
        classes = range(num_classes)
        own = [order[labels == label][: self.images_per_class] for label in classes]
        return images[torch.cat(own)]

    def _query(self, data: TrainingData, run: Run) -> PoissonGradients:
        records, batch = data.num_records, self.batch_size
        query = gradients_at_noise(
            "augm",
            num_records=records,
            batch_size=batch,
            steps=steps_of_epochs(self.epochs, num_records=records, batch_size=batch),
            clip_norm=self.clip_norm,
        )
        return run.at_noise(query)

    def _train(
        self,
        model: PassedThrough,
        average: PassedThrough,
        so_far: Callable[[], Synthesizer],
        data: TrainingData,
        run: Run,
        paid: PaidQuery[PoissonGradients],
    ) -> None:
        private, steps = data.private, paid.query.steps
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        kept = {"model": model, "average": average}
        checkpoint = run.checkpoints.latest(_STAGE, ledger_heads=run.ledger.heads)
        first = 0
        if checkpoint is not None:
            unpack(checkpoint.tensors, kept, optimizer)
            first = checkpoint.step

        def example_losses(rows: Tensor) -> Tensor:
            return model.autoencoder.example_losses(private.pixels[rows].to(run.device))

        with run.progress("augm", steps) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, steps):
                # Down to nothing: late steps hold as much noise as early ones and less news.
                optimizer.param_groups[0]["lr"] = self.lr * (1 - step / steps)
                noisy_gradient(
                    model.autoencoder,
                    example_losses,
                    private.ids,
                    step,
                    paid=paid,
                    key=run.key,
                    world=run.world,
                    micro_batch=self.micro_batch,
                )
                optimizer.step()
                move_average(average, model, step, self.averaging)
                bar.advance()
                run.look(step + 1, steps, so_far)
                if run.checkpoints.due():
                    tensors = pack(kept, optimizer)
                    run.checkpoints.save(_STAGE, Checkpoint(step + 1, tensors, run.ledger.head))
        # Saved whatever the time: what follows must never be computed twice by other arithmetic.
        run.checkpoints.save(_STAGE, Checkpoint(steps, pack(kept, optimizer), run.ledger.head))


def _check_model(model: PassedThrough, data: TrainingData, run: Run) -> None:
    """The pre-flight, on random images: nothing private is read before the ledger is paid."""
    images = torch.rand(4, *data.shape, generator=run.generator("preflight")).to(run.device)
    autoencoder = model.autoencoder
    preflight(autoencoder, lambda rows: autoencoder.example_losses(images[rows]))
