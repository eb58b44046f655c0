"""PSG: a small set of images that gives networks the gradients the private records give them.

Chen, Kerkouche and Fritz (2022), https://arxiv.org/abs/2211.04446. A fresh network is asked one
noisy gradient after another; after each the images take steps that bring their own gradient closer
to it. Private data are touched in `noisy_gradient` alone, on Poisson batches of all classes, and
only in the weights that are matched: biases and scales take neither clip norm nor noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray import models
from dpray.checks import above_zero, at_least_one
from dpray.contract import Release, Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.matching.distance import matched_weights
from dpray.matching.images import (
    GeneratedImages,
    LearntImages,
    NoisyStart,
    balanced_labels,
    refuse_wide_blur,
)
from dpray.matching.loop import Matching, fresh_network, match
from dpray.matching.room import refuse_what_does_not_fit
from dpray.matching.schedule import Schedule
from dpray.methods import register
from dpray.models.architectures import convnet, make_architecture, refuse_too_small
from dpray.models.generators import ImageSet
from dpray.privacy.preflight import preflight
from dpray.privacy.queries import PaidQuery, PoissonGradients

# From so many images a class: ages of a network and passes over the images between two of them.
# One image a class is learnt too soon by a network: all are asked when they are fresh.
_LOOPS = {
    "short": {1: (1, 0), 2: (10, 10)},
    "published": {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)},
}
_PUBLISHED_PRIOR_LOOPS = (2, 10)
_USUAL_QUERIES = 300
_LR_OF_AN_IMAGE = 0.004
_WIDEST = 1024  # channels that can be meant; published are 32 to 256
_MOST_QUERIES = 10_000_000


@register("psg")
@dataclass(frozen=True, kw_only=True)
class Psg:
    """The defaults are preset `laptop`: fewer queries than published, of larger batches."""

    private: ClassVar[bool] = True
    summary: ClassVar[str] = "a few images a class, learnt by matching noisy gradients"
    paper: ClassVar[str] = "Chen, Kerkouche and Fritz 2022"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # Networks see 2 x - 1 of pixels from 0 to 1: a deviation of 0.5 is their 1, and a rate of
        # 0.025 their 0.1.
        "paper": {
            "width": 128,
            "iterations": 1000,
            "loops": "published",
            "queries": 10,
            "pixel_steps": 1,
            "batch_size": 256,
            "start_noise": 0.5,
            "blur": 0.0,
            "lr_images": 0.025,
            "final_lr": 1.0,
            "lr_network": 0.01,
            "prior_width": 64,
        },
    }
    gpu_preset: ClassVar[str] = "paper"
    can_be_looked_at: ClassVar[bool] = True

    spc: int = 10  # images a class
    # Not vgg11: it normalises maps of 2x2, whose gradients are too rough to be clipped one by one.
    architecture: Literal["convnet", "lenet", "alexnet", "resnet18", "mlp-psg"] = "convnet"
    width: int = 16  # channels, of convnet
    # One query a step: iterations x outer x queries of them are charged.
    iterations: int | None = None  # fresh networks; none: as many as ask 300 queries
    loops: Literal["short", "published"] = "short"  # where outer and inner are none: by spc
    outer: int | None = None  # ages of a network
    queries: int = 1  # private gradients at each age
    inner: int | None = None  # passes over the images between two ages
    pixel_steps: int = 15  # of the images for each gradient: reuse of what is paid for is free
    batch_size: int = 2048  # expected: batches are Poisson samples
    clip_norm: float = 0.1
    start_noise: float = 0.1  # deviation of the pixels of the first images
    blur: float = 0.6  # deviation in pixels of what the images are seen through; 0: of nothing
    # None: by the number of images that are matched. A mean loss moves each of them the less, the
    # more there are.
    lr_images: float | None = None
    final_lr: float = 0.0  # share of lr_images or lr_prior that is left at the end
    momentum: float = 0.5
    lr_network: float = 0.05
    prior: Literal["none", "generator"] = "none"
    lr_prior: float = 0.01
    prior_width: int = 16
    snapshots: int = 8  # of the images on their way, kept in the release
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def schedule(self) -> Schedule:
        by_spc = _LOOPS[self.loops]
        outer, inner = by_spc[max(spc for spc in by_spc if spc <= max(self.spc, 1))]
        if self.prior == "generator" and self.loops == "published":
            outer, inner = _PUBLISHED_PRIOR_LOOPS
        outer = outer if self.outer is None else self.outer
        usual = max(1, _USUAL_QUERIES // max(1, outer * self.queries))
        return Schedule(
            iterations=usual if self.iterations is None else self.iterations,
            outer=outer,
            queries=self.queries,
            pixel_steps=self.pixel_steps,
            inner=inner if self.inner is None else self.inner,
        )

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        at_least_one(self, "spc", "batch_size", "micro_batch")
        for name in ("width", "prior_width"):
            if not 1 <= getattr(self, name) <= _WIDEST:
                raise BadInput(f"{name} {getattr(self, name)} must be from 1 to {_WIDEST}")
        schedule = self.schedule()
        if schedule.steps > _MOST_QUERIES:
            raise BadInput(
                f"iterations x outer x queries are {schedule.steps:,} queries: at most "
                f"{_MOST_QUERIES:,} can be meant"
            )
        for name in ("iterations", "outer", "queries", "pixel_steps"):
            if getattr(schedule, name) < 1:
                raise BadInput(f"{name} {getattr(schedule, name)} must be at least 1")
        if schedule.inner < 0 or self.snapshots < 0:
            raise BadInput("inner and snapshots must be at least 0")
        above_zero(self, "clip_norm", "start_noise", "lr_network", "lr_prior")
        if self.lr_images is not None:
            above_zero(self, "lr_images")
        refuse_wide_blur(self.blur, data.shape)
        if not 0 <= self.momentum < 1 or not 0 <= self.final_lr <= 1:
            raise BadInput(
                f"momentum {self.momentum:g} must be at least 0 and below 1, final_lr "
                f"{self.final_lr:g} from 0 to 1"
            )
        refuse_too_small(self.architecture, data.shape)
        refuse_what_does_not_fit(
            self._network_maker(data), data.shape, self.spc, data.num_classes, self._snapshots()
        )

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        labels = balanced_labels(data.num_classes, self.spc)
        every = torch.arange(len(labels))
        images = self._images(labels, data, run)
        return self._learn(images, every, every, data, run, self._snapshots())

    def check_go_on(self) -> None:
        if self.prior != "none":
            raise BadInput("images of later classes cannot be added to a generator: use prior=none")

    def go_on(
        self, earlier: Release | None, classes: tuple[int, ...], data: TrainingData, run: Run
    ) -> Synthesizer:
        """Learns the images of `classes`; networks are also trained on those of earlier ones.

        Images of classes that are still to come are noise. Here they are left out of everything;
        as published, networks are trained on them too.
        """
        labels = balanced_labels(data.num_classes, self.spc)
        images = self._images(labels, data, run)
        assert isinstance(images, NoisyStart)
        past: set[int] = set()
        if earlier is not None:
            assert isinstance(earlier.module, ImageSet)
            past = {label for task in earlier.tasks for label in task}
            rows = _rows_of(labels, past)
            images.give(rows, earlier.module.images[rows])
        matched, trained_on = (_rows_of(labels, own) for own in (set(classes), past | set(classes)))
        return self._learn(images, matched, trained_on, data, run, num_snapshots=0)

    def _learn(
        self,
        images: LearntImages,
        matched: Tensor,
        trained_on: Tensor,
        data: TrainingData,
        run: Run,
        num_snapshots: int,
    ) -> Synthesizer:
        images = images.to(run.device)
        matching = Matching(
            schedule=self.schedule(),
            make_network=self._network_maker(data),
            lr_images=self._first_lr(len(matched)),
            final_lr=self.final_lr,
            lr_network=self.lr_network,
            micro_batch=self.micro_batch,
            matched=matched,
            trained_on=trained_on,
        )
        _check_network(fresh_network(matching, run, 0), data, run)
        # Calibrated once and told to all: every rank must ask the same question to the bit.
        query = run.world.from_first(lambda: self._query(data, run))
        paid: PaidQuery[PoissonGradients] = run.ledger.pay(query)  # private data may be read now
        run.facts.update(query.facts())
        arguments = {
            "shape": list(data.shape),
            "num_images": len(images),
            "num_snapshots": num_snapshots,
        }
        released = models.build("image-set", **arguments)
        assert isinstance(released, ImageSet)
        released.labels.copy_(images.labels)
        steps = matching.schedule.steps
        after = [math.ceil(steps * (k + 1) / num_snapshots) for k in range(num_snapshots)]

        def so_far() -> Synthesizer:
            released.images.copy_(images.all())
            return Synthesizer(
                model="image-set",
                arguments=arguments,
                module=released.eval(),
                class_names=data.class_names,
                shape=data.shape,
            )

        def snapshot(done: int) -> None:
            for place in (k for k, step in enumerate(after) if step == done):
                released.history[place].copy_(images.all())
                released.history_steps[place] = done
            run.look(done, steps, so_far)

        optimizer = images.optimizer(matching.lr_images, self.momentum)
        match(images, optimizer, released, snapshot, matching, data, run, paid)
        return so_far()

    def _first_lr(self, num_matched: int) -> float:
        if self.prior == "generator":
            return self.lr_prior
        return _LR_OF_AN_IMAGE * num_matched if self.lr_images is None else self.lr_images

    def _images(self, labels: Tensor, data: TrainingData, run: Run) -> LearntImages:
        rng = run.generator("images")
        if self.prior == "none":
            return NoisyStart(labels, data.shape, self.start_noise, self.blur, rng)
        torch.manual_seed(run.seed)
        return GeneratedImages(labels, data.shape, data.num_classes, self.prior_width, rng)

    def _snapshots(self) -> int:
        return min(self.snapshots, self.schedule().steps)

    def _network_maker(self, data: TrainingData) -> Callable[[], nn.Module]:
        shape, num_classes = data.shape, data.num_classes
        if self.architecture == "convnet":
            return lambda: convnet(shape, num_classes, self.width)
        return lambda: make_architecture(self.architecture, shape, num_classes)

    def _query(self, data: TrainingData, run: Run) -> PoissonGradients:
        """What will be asked of the private data, with the least noise the budget allows."""
        batch_size = min(self.batch_size, data.num_records)
        query = PoissonGradients(
            name="psg",
            sample_rate=batch_size / data.num_records,
            steps=self.schedule().steps,
            clip_norm=self.clip_norm,
            noise_multiplier=1.0,
            expected_batch_size=batch_size,
        )

        def with_noise(noise_multiplier: float) -> PoissonGradients:
            return replace(query, noise_multiplier=noise_multiplier)

        return run.at_noise(with_noise)


def _rows_of(labels: Tensor, classes: set[int]) -> Tensor:
    return torch.isin(labels, torch.tensor(sorted(classes))).nonzero().flatten()


def _check_network(network: nn.Module, data: TrainingData, run: Run) -> None:
    """The pre-flight, on random images: nothing private is read before the ledger is paid."""
    rng = run.generator("preflight")
    pixels = torch.rand(4, *data.shape, generator=rng).to(run.device)
    labels = torch.randint(data.num_classes, (4,), generator=rng).to(run.device)

    def random_losses(rows: Tensor) -> Tensor:
        return F.cross_entropy(network(pixels[rows]), labels[rows], reduction="none")

    preflight(network, random_losses, parameters=matched_weights(network))
