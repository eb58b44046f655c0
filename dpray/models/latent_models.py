"""Networks over latents: what a private learner trains, and what is released of it.

A learner maps labels and a public random generator to *units*: latents of a public model, scaled
by public statistics. Plain linear layers and no normalisation over a batch: all of it may be
trained under privacy. Shapes: N examples, D latents of the public model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models import build
from dpray.models.generators import normals, one_hot

Activation = Literal["tanh", "leaky-relu"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "leaky-relu": partial(F.leaky_relu, negative_slope=0.2),
}


class _Labelled(nn.Module):
    """Two linear layers over a vector and, where there are classes, its label."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        num_classes: int,
        hidden: int,
        activation: Activation,
        label_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_classes, self.label_scale = num_classes, label_scale  # no classes: unlabelled
        self.activation = _ACTIVATIONS[activation]
        self.inner = nn.Linear(inputs + num_classes, hidden)
        self.outer = nn.Linear(hidden, outputs)

    def through(self, values: Tensor, labels: Tensor) -> Tensor:
        if self.num_classes:
            words = self.label_scale * one_hot(labels, self.num_classes, like=values)
            values = torch.cat([values, words], 1)
        out: Tensor = self.outer(self.activation(self.inner(values)))
        return out


class LatentDecoder(_Labelled):
    """What a private VAE or GAN over latents releases: noise, and a label, to units (N, D)."""

    def __init__(
        self,
        size: int,
        num_classes: int,
        noise: int,
        hidden: int,
        activation: Activation = "leaky-relu",
        label_scale: float = 1.0,
    ) -> None:
        super().__init__(noise, size, num_classes, hidden, activation, label_scale)
        self.noise = noise

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.to(self.outer.weight.device)
        return self.through(normals(rng, len(labels), self.noise, like=self.outer.weight), labels)


class LatentVae(nn.Module):
    """VaeGM over units: sum of squares, and how far each posterior is from the prior."""

    def __init__(
        self,
        decoder: LatentDecoder,
        size: int,
        hidden: int,
        activation: Activation = "leaky-relu",
    ) -> None:
        super().__init__()
        classes, scale = decoder.num_classes, decoder.label_scale
        self.encoder = _Labelled(size, 2 * decoder.noise, classes, hidden, activation, scale)
        self.decoder = decoder

    def example_losses(
        self, units: Tensor, labels: Tensor, noise: Tensor, kl_weight: float
    ) -> Tensor:
        """(N,): a sum of terms of one example each. A weight of 1 is the evidence bound of unit
        variance."""
        mean, log_variance = self.encoder.through(units, labels).chunk(2, dim=1)
        log_variance = log_variance.clamp(-12, 6)
        again = self.decoder.through(mean + (0.5 * log_variance).exp() * noise, labels)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return 0.5 * (again - units).square().sum(1) + kl_weight * divergence.sum(1)


class LatentCritic(_Labelled):
    """Units, and a label, to a score (N,): a linear head, and no sigmoid on it."""

    def __init__(self, size: int, num_classes: int, hidden: int, label_scale: float = 1.0) -> None:
        super().__init__(size, 1, num_classes, hidden, "leaky-relu", label_scale)

    def forward(self, units: Tensor, labels: Tensor) -> Tensor:
        return self.through(units, labels).squeeze(1)


class LatentHistory(nn.Module):
    """A learner's decoder as it was on its way, after so many steps: public, as the last one is."""

    steps: Tensor  # (K,)

    def __init__(self, count: int, decoder: Mapping[str, Any]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(LatentDecoder(**decoder) for _ in range(count))
        self.register_buffer("steps", torch.zeros(count, dtype=torch.long))

    def due(self, done: int, of: int) -> list[int]:
        """The places that step `done` of `of` fills: the last step fills the last one."""
        count = len(self.decoders)
        return [k for k in range(count) if math.ceil(of * (k + 1) / count) == done]

    def take(self, done: int, of: int, decoder: nn.Module) -> None:
        for place in self.due(done, of):
            self.decoders[place].load_state_dict(decoder.state_dict())
            self.steps[place] = done


class LatentSynthesizer(nn.Module):
    """Learners of units, the scale that makes units latents, and the public model behind them.

    One learner knows all classes, or there is one for each; where there is none for labels at all,
    `labeller`, a public classifier, sorts what it draws.
    """

    mean: Tensor  # (D,)
    matrix: Tensor  # (D, D): units times this, plus the mean, are latents

    def __init__(
        self,
        public: Mapping[str, Any],
        decoder: Mapping[str, Any],
        num_learners: int = 1,
        num_snapshots: int = 0,
        labeller: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.public_model: Any = build(public["model"], **public["arguments"])
        self.learners = nn.ModuleList(LatentDecoder(**decoder) for _ in range(num_learners))
        self.histories = nn.ModuleList(
            LatentHistory(num_snapshots, decoder)
            for _ in range(num_learners if num_snapshots else 0)
        )
        self.labeller = None
        if labeller is not None:
            self.labeller = build(labeller["model"], **labeller["arguments"])
        size = decoder["size"]
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("matrix", torch.eye(size))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        return self.images(labels, rng, list(self.learners))

    def after(self, snapshot: int, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Images of the learners as they were at that snapshot."""
        histories = [cast(LatentHistory, history) for history in self.histories]
        return self.images(labels, rng, [history.decoders[snapshot] for history in histories])

    def images(self, labels: Tensor, rng: torch.Generator, decoders: Sequence[nn.Module]) -> Tensor:
        if self.labeller is not None:
            return sorted_by(
                self.labeller, lambda count: self._decoded(decoders[0], count, rng), labels
            )
        if len(decoders) == 1:
            return self._decoded(decoders[0], labels, rng)
        rows = [(labels == label).nonzero().flatten() for label in range(len(decoders))]
        drawn = [
            self._decoded(decoder, torch.zeros(len(own), dtype=torch.long), rng)
            for decoder, own in zip(decoders, rows, strict=True)
        ]
        images = torch.cat(drawn)
        return images[torch.cat(rows).argsort().to(images.device)]

    def _decoded(self, decoder: nn.Module, labels: Tensor | int, rng: torch.Generator) -> Tensor:
        if isinstance(labels, int):
            labels = torch.zeros(labels, dtype=torch.long)
        units: Tensor = decoder(labels, rng)
        images: Tensor = self.public_model.decode(units @ self.matrix + self.mean)
        return images


_MOST_ROUNDS = 8


def sorted_by(labeller: nn.Module, draw: Callable[[int], Tensor], labels: Tensor) -> Tensor:
    """An image for every label, of those that `draw` gives and `labeller` puts into its class.

    A class that comes up too rarely gets its images more than once; one that hardly ever does, the
    images that look most like it.
    """
    labels = labels.cpu()
    num_classes = int(labels.max()) + 1 if len(labels) else 0
    wanted = torch.bincount(labels, minlength=num_classes)
    drawn, said = [], []
    for _ in range(_MOST_ROUNDS):
        drawn.append(draw(2 * len(labels)))
        said.append(labeller(drawn[-1]).log_softmax(1).cpu())
        chosen = torch.cat(said).argmax(1)
        found = torch.bincount(chosen, minlength=num_classes)[:num_classes]
        if bool((found >= wanted).all()):
            break
    images, likeness = torch.cat(drawn), torch.cat(said)
    picked = torch.empty(len(labels), dtype=torch.long)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().flatten()
        own = (chosen == label).nonzero().flatten()
        fewest = -(-len(rows) // 4)
        if len(own) < fewest:
            own = likeness[:, label].topk(fewest).indices
        picked[rows] = own[torch.arange(len(rows)) % len(own)]
    return images[picked.to(images.device)]
