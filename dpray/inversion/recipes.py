"""How a public model is built and trained: plain settings, JSON, and part of its cache key.

Public throughout: it is trained on public images before anything private is read.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from dpray import models
from dpray.errors import BadInput, unknown
from dpray.models.critics import ConvCritic, FcCritic
from dpray.models.generators import Shape

# Part of every cache key: raise it with any change to how public models are trained.
VERSION = 1

Kind = Literal["autoencoder", "gan"]
Network = Literal["fc", "conv"]
Loss = Literal["wgan", "wgan-gp"]


class _Numbers(NamedTuple):
    hidden: int
    steps: int
    batch_size: int
    lr: float


# What a field left out stands for: for one core of a laptop.
_DEFAULTS = {
    "autoencoder": _Numbers(hidden=128, steps=3000, batch_size=256, lr=4e-3),
    "wgan": _Numbers(hidden=256, steps=6000, batch_size=128, lr=1.5e-3),
    "wgan-gp": _Numbers(hidden=256, steps=4000, batch_size=128, lr=1e-3),
}
_NAMES = {
    ("autoencoder", "fc"): "fc-autoencoder",
    ("autoencoder", "conv"): "conv-autoencoder",
    ("gan", "fc"): "fc-latent-generator",
    ("gan", "conv"): "conv-latent-generator",
}


@dataclass(frozen=True, kw_only=True)
class PublicRecipe:
    """An autoencoder, or the generator of a Wasserstein GAN. None: what suits the kind."""

    kind: Kind = "autoencoder"
    network: Network = "fc"
    loss: Loss = "wgan-gp"  # of a GAN: weights clipped, or the gradient's norm held at 1
    latent: int = 100
    hidden: int | None = None  # of an fc network, and of a GAN's fc critic
    steps: int | None = None  # of the autoencoder, or of the generator
    batch_size: int | None = None
    lr: float | None = None
    weight_clip: float = 0.01  # of a critic under loss wgan
    critic_steps: int = 2  # for one of the generator
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("kind", Kind), ("network", Network), ("loss", Loss)):
            if getattr(self, name) not in get_args(choices):
                raise unknown(f"{name} of a public model", getattr(self, name), get_args(choices))
        for name in ("latent", "hidden", "batch_size", "critic_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} {value} of a public model must be at least 1")
        if self.steps is not None and self.steps < 0:
            raise BadInput(f"steps {self.steps} of a public model must be at least 0")
        for name in ("lr", "weight_clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{name} {value:g} of a public model must be above 0")

    @property
    def model(self) -> str:
        """Its name in the table of models."""
        return _NAMES[self.kind, self.network]

    def arguments(self, shape: Shape) -> dict[str, Any]:
        """What the table of models builds it with: JSON."""
        plain: dict[str, Any] = {"shape": list(shape), "latent": self.latent}
        return {**plain, "hidden": self.full().hidden} if self.network == "fc" else plain

    def build(self, shape: Shape) -> nn.Module:
        """Fresh weights, which follow from the seed, whoever draws besides."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            return models.build(self.model, **self.arguments(shape))

    def critic(self, shape: Shape) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed + 1)
            if self.network == "conv":
                return ConvCritic(shape)
            return FcCritic(math.prod(shape), self.full().hidden or 1, layers=2)

    def full(self) -> PublicRecipe:
        """This recipe with every number written out."""
        own = _DEFAULTS["autoencoder" if self.kind == "autoencoder" else self.loss]
        return replace(
            self,
            hidden=own.hidden if self.hidden is None else self.hidden,
            steps=own.steps if self.steps is None else self.steps,
            batch_size=own.batch_size if self.batch_size is None else self.batch_size,
            lr=own.lr if self.lr is None else self.lr,
        )

    def json(self) -> str:
        """With every number written out: equal for recipes that train the same model."""
        said = asdict(self.full())
        if self.kind == "autoencoder":
            for name in ("loss", "weight_clip", "critic_steps"):
                del said[name]
        elif self.loss != "wgan":
            del said["weight_clip"]
        if self.network == "conv":
            del said["hidden"]
        return json.dumps(said, sort_keys=True)
