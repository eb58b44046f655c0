"""DP-SGD: a classifier whose every update is a noisy, clipped gradient.

Abadi et al. (2016), https://arxiv.org/abs/1607.00133; scattering features after Tramer and
Boneh (2021), https://arxiv.org/abs/2011.11660; tempered sigmoids after Papernot et al. (2021).
Private data are touched in `noisy_gradient` alone, on Poisson batches, paid for in advance.
Weight averaging and everything else after it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray import models
from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Classifier, Release, Run
from dpray.data.records import TrainingData
from dpray.data.tasks import TaskData
from dpray.errors import BadInput
from dpray.features import private_features
from dpray.methods import register
from dpray.models.batches import in_batches
from dpray.models.classifiers import Features, Head, ImageClassifier, make_features, make_head
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.preflight import preflight
from dpray.privacy.queries import PoissonGradients

T = TypeVar("T")
_LARGEST = 1e6  # of a rate or a norm that can be meant


@dataclass(frozen=True)
class Default:
    """What works for a model, and the learning rate that goes with a batch, a clip and a noise.

    A step puts noise of lr * noise * clip / batch into every weight: the default rate keeps
    that constant, up to the rate at which the model still trains without noise.
    """

    batch_size: int
    epochs: float
    clip_norm: float
    lr_times_noise: float  # at this batch size and clip norm
    largest_lr: float
    averaging: float

    def lr(self, batch_size: int, clip_norm: float, noise_multiplier: float) -> float:
        scale = (batch_size / self.batch_size) * (self.clip_norm / clip_norm)
        return scale * min(self.lr_times_noise / noise_multiplier, self.largest_lr)


# Chosen on the public test sets of MNIST and Fashion-MNIST, epsilon 1 to 10: docs/results.md.
_DEFAULTS = {
    "linear": Default(4096, 40, 0.1, lr_times_noise=22.0, largest_lr=16.0, averaging=0.95),
    "mlp": Default(2048, 20, 0.1, lr_times_noise=4.0, largest_lr=4.0, averaging=0.95),
    "cnn": Default(1024, 8, 0.1, lr_times_noise=2.0, largest_lr=2.0, averaging=0.95),
    "tanh-cnn": Default(1024, 20, 0.1, lr_times_noise=4.0, largest_lr=4.0, averaging=0.95),
}


@dataclass(frozen=True)
class Plan:
    batch_size: int
    steps: int
    clip_norm: float
    lr: float | None  # None: follows from the noise, once that is known
    averaging: float


@register("dp-sgd")
@dataclass(frozen=True, kw_only=True)
class DPSgd:
    """Fields left at None take the value that works for the model: see `_DEFAULTS`."""

    private: ClassVar[bool] = True
    summary: ClassVar[str] = "classifier trained on noisy clipped gradients"
    paper: ClassVar[str] = "Abadi et al. 2016; Tramer and Boneh 2021"
    can_be_looked_at: ClassVar[bool] = True

    model: Head = "linear"
    features: Features = "scatter"
    batch_size: int | None = None  # expected: batches are Poisson samples
    epochs: float | None = None  # passes over the data on average; or give steps
    steps: int | None = None
    clip_norm: float | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float | None = None
    momentum: float = 0.9
    averaging: float | None = None  # decay of the average of the weights that is released
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def plan(self, num_records: int) -> Plan:
        """The numbers of the training, defaults filled in and checked before anything is paid."""
        if self.steps is not None and self.epochs is not None:
            raise BadInput("give steps or epochs, not both: one follows from the other")
        default = _DEFAULTS[self.model]
        batch_size = min(_first(self.batch_size, default.batch_size), num_records)
        lr = _first(self.lr, 1e-3) if self.optimizer == "adam" else self.lr
        clip_norm = _first(self.clip_norm, default.clip_norm)
        averaging = _first(self.averaging, default.averaging)
        if batch_size < 1 or self.micro_batch < 1:
            raise BadInput("batch_size and micro_batch must be at least 1")
        if not 0 < clip_norm < _LARGEST or (lr is not None and not 0 < lr < _LARGEST):
            raise BadInput(
                f"lr {lr} and clip_norm {clip_norm:g} must be above 0 and below {_LARGEST:g}"
            )
        if not 0 <= averaging < 1 or not 0 <= self.momentum < 1:
            raise BadInput(
                f"averaging {averaging:g} and momentum {self.momentum:g} must be at least 0 and "
                "below 1"
            )
        epochs = _first(self.epochs, default.epochs)
        steps = _first(self.steps, round(epochs * num_records / batch_size))
        if steps < 1:
            raise BadInput(f"{steps} steps train nothing: raise epochs or steps")
        return Plan(batch_size, steps, clip_norm, lr, averaging)

    def check(self, data: TrainingData) -> None:
        self.plan(data.num_records)
        make_head(self.model, make_features(self.features, data.shape).out_shape, 2)

    def fit(self, data: TrainingData, run: Run) -> Classifier:
        return self._train(data, run, earlier=None)

    def check_go_on(self) -> None:
        """Whatever can be trained can be fine-tuned."""

    def go_on(
        self, earlier: Release | None, classes: tuple[int, ...], data: TrainingData, run: Run
    ) -> Classifier:
        """Fine-tunes what was released before on the new classes, with a fresh optimiser.

        Nothing of earlier classes is shown to it again, so it forgets them: the baseline.
        """
        return self._train(data, run, earlier=earlier)

    def _train(self, data: TrainingData, run: Run, *, earlier: Release | None) -> Classifier:
        plan = self.plan(data.num_records)
        # Calibrated once and told to all: every rank must ask the same question to the bit.
        query = run.world.from_first(lambda: _query(plan, data, run))
        arguments = {
            "model": self.model,
            "features": self.features,
            "shape": list(data.shape),
            "num_classes": data.num_classes,
        }
        torch.manual_seed(run.seed)
        classifier = models.build("image-classifier", **arguments).to(run.device)
        assert isinstance(classifier, ImageClassifier)
        if earlier is not None:
            classifier.load_state_dict(earlier.module.state_dict())
        _check_head(classifier, data.num_classes, run)
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        inputs = _inputs(data, classifier, self.features, run)
        labels, head = data.private.labels, classifier.head

        def example_losses(rows: Tensor) -> Tensor:
            logits = head(inputs[rows].to(run.device, torch.float32))
            return F.cross_entropy(logits, labels[rows].to(run.device), reduction="none")

        average = models.build("image-classifier", **arguments).to(run.device)
        assert isinstance(average, ImageClassifier)
        average.load_state_dict(classifier.state_dict())
        follows = _DEFAULTS[self.model].lr(plan.batch_size, plan.clip_norm, query.noise_multiplier)
        optimizer = self._optimizer(head, _first(plan.lr, follows))
        kept: dict[str, nn.Module] = {"head": head, "average": average.head}
        release = Classifier(
            model="image-classifier",
            arguments=arguments,
            module=average,
            class_names=data.class_names,
            shape=data.shape,
        )
        first = _restore(run, kept, optimizer)
        with run.progress("dp-sgd", query.steps) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, query.steps):
                noisy_gradient(
                    head,
                    example_losses,
                    data.private.ids,
                    step,
                    paid=paid,
                    key=run.key,
                    world=run.world,
                    micro_batch=self.micro_batch,
                )
                optimizer.step()
                move_average(average.head, head, step, plan.averaging)
                bar.advance()
                run.look(step + 1, query.steps, lambda: release)
                if run.checkpoints.due():
                    tensors = pack(kept, optimizer)
                    run.checkpoints.save("train", Checkpoint(step + 1, tensors, run.ledger.head))
        # Saved whatever the time: what follows must never be computed twice by other arithmetic.
        run.checkpoints.save(
            "train", Checkpoint(query.steps, pack(kept, optimizer), run.ledger.head)
        )
        return release

    def _optimizer(self, head: nn.Module, lr: float) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return torch.optim.Adam(head.parameters(), lr=lr)
        return torch.optim.SGD(head.parameters(), lr=lr, momentum=self.momentum)


def _first(given: T | None, default: T) -> T:
    return default if given is None else given


def _query(plan: Plan, data: TrainingData, run: Run) -> PoissonGradients:
    """What will be asked of the private data, with the least noise the budget allows."""
    sample_rate = plan.batch_size / data.num_records

    def with_noise(noise_multiplier: float) -> PoissonGradients:
        return PoissonGradients(
            name="dp-sgd",
            sample_rate=sample_rate,
            steps=plan.steps,
            clip_norm=plan.clip_norm,
            noise_multiplier=noise_multiplier,
            expected_batch_size=plan.batch_size,
        )

    return run.at_noise(with_noise)


def _inputs(data: TrainingData, classifier: ImageClassifier, kind: str, run: Run) -> Tensor:
    """The features of this worker's records. Those of a task are not kept: see `TaskData`."""
    if not isinstance(data, TaskData) or kind == "pixels":
        return private_features(data, classifier.features, kind, run)
    module, one = classifier.features, torch.zeros(1, *data.shape)
    # One image more, cut off again: a worker may have no record of the task.
    pixels = torch.cat([data.private.pixels, one])
    return in_batches(lambda part: module(part).half(), pixels, 250, run.device)[:-1]


def _check_head(classifier: ImageClassifier, num_classes: int, run: Run) -> None:
    """The pre-flight, on random inputs: nothing private is read before the ledger is paid."""
    rng = run.generator("preflight")
    inputs = torch.randn(4, *classifier.features.out_shape, generator=rng).to(run.device)
    labels = torch.randint(num_classes, (4,), generator=rng).to(run.device)

    def random_losses(rows: Tensor) -> Tensor:
        return F.cross_entropy(classifier.head(inputs[rows]), labels[rows], reduction="none")

    preflight(classifier.head, random_losses)


def _restore(run: Run, kept: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> int:
    """The step to go on from: after the last whole checkpoint, or the first."""
    checkpoint = run.checkpoints.latest("train", ledger_heads=run.ledger.heads)
    if checkpoint is None:
        return 0
    unpack(checkpoint.tensors, kept, optimizer)
    return checkpoint.step
