"""DP-Sinkhorn: a generator moved along noisy gradients of an optimal transport, without a critic.

Cao et al. 2021, https://arxiv.org/abs/2111.01177. Each step moves generated images towards a
Poisson sample of the records, by the gradient of a Sinkhorn divergence; the gradient of all images
is clipped as one, noised, and pulled back through the generator, which is public. Private data are
touched in `noisy_group_vector` alone. The number of generated images is fixed: in the paper it is
that of the records drawn, and so gives it away.
Shapes: n generated images, m drawn records, D pixels, S classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dpray.checks import above_zero, at_least_one, below_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import Images, TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.generators import coarsened, one_hot
from dpray.privacy.groups import noisy_group_vector
from dpray.privacy.queries import PoissonGroups
from dpray.transport import transport_gradient
from dpray.upstream import Follower, GeneratorKind, follow


@register("dp-sinkhorn")
@dataclass(frozen=True, kw_only=True)
class DPSinkhorn:
    name: ClassVar[str]
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "generator moved by a noisy gradient of an optimal transport"
    paper: ClassVar[str] = "Cao et al. 2021"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # The published loop, at the number of steps that noise 1.1 affords for epsilon 10.
        "paper": {
            "generator": "deconv",
            "grain": 1,
            "hidden": 64,
            "latent": 16,
            "batch_size": 50,
            "num_fakes": 50,
            "steps": 3_450_000,
            "class_weights": False,
            "absolute": 1.0,
            "iterations": 100,
            "clip_norm": 0.5,
            "lr": 1e-5,
            "schedule": "constant",
            "averaging": 0.0,
        },
    }
    gpu_preset: ClassVar[str] = "paper"
    can_be_looked_at: ClassVar[bool] = True

    generator: GeneratorKind = "coarse"
    # Pixels a side of the squares in which images are compared: fewer numbers to noise.
    grain: int = 2
    latent: int = 8
    hidden: int = 64  # units, or maps at the full size for deconv
    batch_size: int = 50  # expected: batches are Poisson samples
    num_fakes: int = 30  # generated in each step, of every class as many or one more
    steps: int = 20_000
    # How much of the images' mass a class has: as much as of the records drawn, or always the same.
    # The first keeps transport within classes; it is a fact of the sample, inside the clip.
    class_weights: bool = True
    label_scale: float = 15.0  # of the one-hot label beside pixels in [-1, 1]
    # Weight of absolute differences beside squared ones; 1 or 3 in the paper. They take as long.
    absolute: float = 0.0
    blur: float = 0.05  # of the transport, in units of its cost
    iterations: int = 20
    # Share of the images that are others on the second side of the term against bias.
    fresh: float = 0.2
    clip_norm: float = 0.5  # of the gradient by all generated images together
    lr: float = 1e-3  # of Adam, at first
    schedule: Literal["linear", "constant"] = "linear"  # down to nothing, or not
    averaging: float = 0.999

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        counts = ("latent", "hidden", "batch_size", "num_fakes", "steps", "iterations")
        at_least_one(self, *counts)
        if self.num_fakes < data.num_classes:
            raise BadInput(
                f"num_fakes {self.num_fakes} must be at least the {data.num_classes} classes of "
                f"{data.name}: every step makes an image of each"
            )
        above_zero(self, "label_scale", "blur", "clip_norm", "lr")
        if not 0 <= self.absolute < math.inf or not 0 <= self.fresh <= 1:
            raise BadInput(
                f"absolute {self.absolute:g} must be at least 0, fresh {self.fresh:g} from 0 to 1"
            )
        below_one(self, "averaging")
        if not 1 <= self.grain <= min(data.shape[1:]):
            raise BadInput(
                f"a grain of {self.grain} does not fit images of {data.shape[1]}x{data.shape[2]}"
            )

    def query(self, num_records: int, noise_multiplier: float) -> PoissonGroups:
        return PoissonGroups(
            name="dp-sinkhorn",
            sample_rate=min(1.0, self.batch_size / num_records),
            steps=self.steps,
            clip_norm=self.clip_norm,
            noise_multiplier=noise_multiplier,
        )

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        generator, release = self._follower.build(data, run)
        query = run.world.from_first(
            lambda: run.at_noise(lambda noise: self.query(data.num_records, noise))
        )
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        labels = torch.arange(self.num_fakes) % data.num_classes

        def noisy_gradient(step: int, images: Tensor) -> Tensor:
            others = self._others(generator, images, labels, run.generator(f"others {step}"))
            pull = Pull(self, images, others, labels.to(run.device), data.num_classes)
            return noisy_group_vector(
                pull.raw_gradient,
                data.private,
                step,
                dimension=images.numel(),
                paid=paid,
                key=run.key,
                world=run.world,
            )

        follow(
            generator,
            release,
            noisy_gradient,
            labels,
            self._follower,
            run,
            name=self.name,
            steps=query.steps,
        )
        return release

    @property
    def _follower(self) -> Follower:
        return Follower(
            self.generator,
            self.latent,
            self.hidden,
            self.grain,
            self.lr,
            self.schedule,
            self.averaging,
        )

    @torch.no_grad()
    def _others(
        self, generator: nn.Module, images: Tensor, labels: Tensor, rng: torch.Generator
    ) -> Tensor:
        """The images with some of them made anew: what they are held apart from."""
        made = self._follower.images(generator, labels, rng)
        anew = torch.rand(len(labels), generator=rng).argsort()[: round(self.fresh * len(labels))]
        mixed = images.clone()
        mixed[anew] = made[anew]
        return mixed


@dataclass(frozen=True, repr=False)
class Pull:
    """Where generated images are pulled to by records. All that it holds is public."""

    settings: DPSinkhorn
    images: Tensor  # (n, C, H, W)
    others: Tensor  # (n, C, H, W)
    labels: Tensor  # (n,), of both
    num_classes: int

    def raw_gradient(self, drawn: Images) -> Tensor:
        """(n, C, H, W): of the Sinkhorn divergence by the images. NOT clipped and NOT noised.

        The term that holds images apart is public, but in the same clip as the one that pulls
        them: clipped by itself, each would lose another share, and their balance with it.
        """
        labels = drawn.labels.to(self.images.device)
        points, weights = self._points(self.images, self.labels), self._weights(labels)
        others = self._points(self.others, self.labels)
        pixels = coarsened(drawn.pixels.to(self.images), self.settings.grain)
        records = self._points(pixels, labels)
        even = torch.full((len(labels),), 1 / len(labels), device=points.device)
        pulled = self._gradient(points, weights, records, even)
        held = self._gradient(points, weights, others, weights)
        return (pulled - held)[:, : -self.num_classes]  # labels stay as they are

    def _points(self, images: Tensor, labels: Tensor) -> Tensor:
        """(n, D + S): pixels in [-1, 1] beside the label, which is dear to change."""
        words = self.settings.label_scale * one_hot(labels, self.num_classes, like=images)
        return torch.cat([2 * images.flatten(1) - 1, words], 1)

    def _weights(self, drawn: Tensor) -> Tensor:
        """(n,): a class of images weighs as much as its records, unless it is always the same."""
        size = self.num_classes
        images = torch.bincount(self.labels, minlength=size).float()
        records = torch.bincount(drawn, minlength=size).float()
        share = records / images if self.settings.class_weights else torch.ones_like(images)
        weights = share[self.labels]
        return weights / weights.sum()

    def _gradient(
        self, points: Tensor, weights: Tensor, targets: Tensor, target_weights: Tensor
    ) -> Tensor:
        settings = self.settings
        return transport_gradient(
            points,
            weights,
            targets,
            target_weights,
            absolute=settings.absolute,
            blur=settings.blur,
            iterations=settings.iterations,
        )
