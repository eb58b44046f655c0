"""A stand-in method: every rank fans jobs out over its pool and shares records out its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from lent_jobs import spin

from dpray import methods, models
from dpray.contract import Classifier, Run
from dpray.data.records import TrainingData
from dpray.distributed import train
from dpray.methods.sgd import _NonPrivate

JOBS, SECONDS = 3, 1.0


@dataclass(frozen=True, kw_only=True)
class FansOut:
    name: ClassVar[str] = "fans-out"
    private: ClassVar[bool] = False

    def check(self, data: TrainingData) -> None:
        pass

    def share(self, data: TrainingData, rank: int, size: int) -> TrainingData:
        """Every rank gets records of its own classes only."""
        return replace(data, private=data.private[data.private.labels % size == rank])

    def fit(self, data: TrainingData, run: Run) -> Classifier:
        run.ledger.pay(_NonPrivate())
        done = list(run.pool.map(spin, range(JOBS), shared=SECONDS))
        classes = data.private.labels.unique()
        counts = run.world.sum(torch.tensor([len(done), len(classes), 1]))
        run.facts.update(sampling="{} jobs, {} classes, {} ranks".format(*counts.tolist()))
        arguments = {
            "model": "linear",
            "features": "pixels",
            "shape": list(data.shape),
            "num_classes": data.num_classes,
        }
        torch.manual_seed(run.seed)
        module = models.build("image-classifier", **arguments)
        return Classifier("image-classifier", arguments, module, data.class_names, data.shape)


def work(config: dict[str, Any]) -> None:
    """A worker of `train` that knows this method."""
    methods.register(FansOut.name)(FansOut)
    train._work(config)
