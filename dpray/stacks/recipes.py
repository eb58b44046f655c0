"""Which encoder and decoder stage 1 trains, and how: plain settings that travel with a job.

All of it is public. What is trained by it is not: encoders stay on the private side.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dpray import models
from dpray.errors import BadInput
from dpray.models.autoencoders import VariationalAutoencoder
from dpray.models.generators import Shape, coarse_shape


@dataclass(frozen=True)
class Recipe:
    """Names in the table of models, and their arguments: JSON."""

    encoder: str
    encoder_arguments: Mapping[str, Any]
    decoder: str
    decoder_arguments: Mapping[str, Any]

    @property
    def latent(self) -> int:
        return int(self.encoder_arguments["latent"])

    @property
    def shape(self) -> Shape:
        channels, height, width = self.decoder_arguments["shape"]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        return int(self.decoder_arguments["num_classes"])

    def build(self, seed: int) -> VariationalAutoencoder:
        """A fresh pair; its initial weights follow from `seed`, whoever draws besides."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            encoder: Any = models.build(self.encoder, **self.encoder_arguments)
            decoder: Any = models.build(self.decoder, **self.decoder_arguments)
            return VariationalAutoencoder(encoder, decoder)


def mlp_recipe(
    shape: Shape,
    num_classes: int,
    latent: int,
    hidden: int,
    label_scale: float = 1.0,
    grain: int = 1,
    encoder_hidden: int | None = None,
) -> Recipe:
    """Two linear layers each way: small enough for 2500 encoders on a laptop.

    `hidden` are the units of the decoder, and of the encoder unless it has its own number. With a
    `grain` above 1 the encoder sees coarser images, and the decoder gives as coarse ones, enlarged.
    """
    alike = {"latent": latent, "label_scale": label_scale, "grain": grain}
    return Recipe(
        "encoder",
        {
            "pixels": math.prod(coarse_shape(shape, grain)),
            "num_labels": num_classes,
            "hidden": hidden if encoder_hidden is None else encoder_hidden,
            **alike,
        },
        "conditional-decoder",
        {
            "shape": list(shape),
            "num_classes": num_classes,
            "hidden": hidden,
            **alike,
        },
    )


def conv_recipe(shape: Shape, num_classes: int, latent: int, channels: Sequence[int]) -> Recipe:
    """The paper's convolutional pair."""
    arguments = {
        "shape": list(shape),
        "num_classes": num_classes,
        "latent": latent,
        "channels": list(channels),
    }
    return Recipe("conv-encoder", arguments, "conv-decoder", arguments)


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How every encoder is trained. `seed` gives initial weights, latent noise and batches."""

    recipe: Recipe
    steps: int
    seed: int = 0
    lr: float = 1e-3
    clip_norm: float = 1.0  # of the encoder's gradient, and of its decoder's
    kl_weight: float = 1.0
    grain: int = 1  # of the images it is trained on; the recipe is for images as coarse as that
    batch_size: int = 32  # a subset with no more records is taken whole at every step
    # Whether all start from the same weights, so that their latents mean the same.
    shared_start: bool = True
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch_size < 1:
            raise BadInput(
                f"steps {self.steps} must be at least 0, batch_size {self.batch_size} at least 1"
            )
        if self.grain < 1:
            raise BadInput(f"grain {self.grain} must be at least 1")
        for name in ("lr", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} {getattr(self, name):g} must be above 0")
        if not 0 <= self.kl_weight < math.inf:
            raise BadInput(f"kl_weight {self.kl_weight:g} must be at least 0")

    @property
    def one_by_one(self) -> bool:
        """Whether the members of a block take their losses in turn and not under vmap.

        So for convolutions on a processor: each of them keeps it busy already, and with weights
        that differ by member they take twice as long.
        """
        return self.recipe.encoder == "conv-encoder" and self.device == "cpu"

    def digest(self, *more: str) -> str:
        """What an encoder depends on besides its subset; `more` may say which data they are."""
        said = {name: value for name, value in asdict(self).items() if name != "device"}
        text = json.dumps([said, *more], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
