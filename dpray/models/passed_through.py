"""Public images passed through a private autoencoder: what comes out is the synthetic set.

The autoencoder has seen private records through noisy gradients alone; the images it is given are
public and travel with it, a byte a pixel.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models.generators import Shape, rows_of


class BottleneckAutoencoder(nn.Module):
    """Two linear layers each way. No layer mixes examples: it may be trained under privacy."""

    def __init__(self, shape: Shape, latent: int, hidden: int) -> None:
        super().__init__()
        pixels = math.prod(shape)
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.into = nn.Linear(pixels, hidden)
        self.narrow = nn.Linear(hidden, latent)
        self.wide = nn.Linear(latent, hidden)
        self.out = nn.Linear(hidden, pixels)

    def encode(self, images: Tensor) -> Tensor:
        latents: Tensor = self.narrow(F.relu(self.into(images.flatten(1))))
        return latents

    def logits(self, latents: Tensor) -> Tensor:
        """(N, C*H*W) before the sigmoid, which the loss takes care of."""
        logits: Tensor = self.out(F.relu(self.wide(latents)))
        return logits

    def example_losses(self, images: Tensor) -> Tensor:
        """(N,): cross-entropy summed over the pixels of each example."""
        logits = self.logits(self.encode(images))
        target = images.flatten(1)
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.encode(images)).sigmoid().reshape(-1, *self.shape)


class PassedThrough(nn.Module):
    """To draw a label is to pick a public image of it and to pass it through."""

    inputs: Tensor  # (M, C, H, W) uint8, public
    labels: Tensor  # (M,)

    def __init__(self, shape: Shape, latent: int, hidden: int, num_inputs: int) -> None:
        super().__init__()
        self.autoencoder = BottleneckAutoencoder(shape, latent, hidden)
        self.register_buffer("inputs", torch.zeros(num_inputs, *shape, dtype=torch.uint8))
        self.register_buffer("labels", torch.zeros(num_inputs, dtype=torch.long))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        picked = rows_of(labels, self.labels, rng)
        images: Tensor = self.autoencoder(self.inputs[picked].float() / 255)
        return images
