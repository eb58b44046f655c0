"""Plain training, no privacy: the ceiling the private methods are measured against.

The ledger is charged with a non-private event, so epsilon is infinite and the card says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting as dp
import torch
import torch.nn.functional as F

from dpray import models
from dpray.contract import Classifier, Run
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.features import private_features
from dpray.methods import register
from dpray.models.classifiers import Features, Head, ImageClassifier, make_features, make_head


@dataclass(frozen=True)
class _NonPrivate:
    name: str = "sgd"
    steps: int = 1
    bound: None = None

    @property
    def event(self) -> dp.DpEvent:
        return dp.NonPrivateDpEvent()


@register("sgd")
@dataclass(frozen=True, kw_only=True)
class Sgd:
    private: ClassVar[bool] = False
    summary: ClassVar[str] = "classifier trained without any privacy: the ceiling"
    paper: ClassVar[str] = "-"

    model: Head = "cnn"
    features: Features = "pixels"
    batch_size: int = 128
    epochs: int = 6
    lr: float = 1e-3

    def check(self, data: TrainingData) -> None:
        if self.batch_size < 1 or self.epochs < 1 or self.lr <= 0:
            raise BadInput("batch_size and epochs must be at least 1, and lr above 0")
        make_head(self.model, make_features(self.features, data.shape).out_shape, 2)

    def fit(self, data: TrainingData, run: Run) -> Classifier:
        arguments = {
            "model": self.model,
            "features": self.features,
            "shape": list(data.shape),
            "num_classes": data.num_classes,
        }
        torch.manual_seed(run.seed)
        classifier = models.build("image-classifier", **arguments).to(run.device)
        assert isinstance(classifier, ImageClassifier)
        run.ledger.pay(_NonPrivate())
        run.facts.update(sampling="shuffled batches, no noise")
        inputs = private_features(data, classifier.features, self.features, run)
        head = classifier.head
        per_worker = max(1, self.batch_size // run.world.size)
        # The same number of steps on every worker, whatever its share of the records.
        steps = -(-data.num_records // (per_worker * run.world.size)) * self.epochs
        optimizer = torch.optim.Adam(head.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr * 2, total_steps=steps)
        rng = run.generator(f"batches {run.world.rank}")
        order = torch.empty(0, dtype=torch.long)
        with run.progress("sgd", steps) as bar:
            for _ in range(steps):
                if len(order) == 0:
                    order = torch.randperm(len(data.private), generator=rng)
                rows, order = order[:per_worker], order[per_worker:]
                logits = head(inputs[rows].to(run.device, torch.float32))
                loss = F.cross_entropy(logits, data.private.labels[rows].to(run.device))
                optimizer.zero_grad()
                loss.backward()
                for parameter in head.parameters():
                    if parameter.grad is not None and run.world.size > 1:
                        parameter.grad = run.world.sum(parameter.grad) / run.world.size
                optimizer.step()
                schedule.step()
                bar.advance()
        return Classifier(
            model="image-classifier",
            arguments=arguments,
            module=classifier,
            class_names=data.class_names,
            shape=data.shape,
        )
