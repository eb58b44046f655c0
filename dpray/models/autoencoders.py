"""Encoders of variational autoencoders: plain layers that may be trained under privacy."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models.generators import coarsened, one_hot


class Encodes(Protocol):
    """A module from images and labels to mean and log-variance of the latents, (N, latent)."""

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]: ...


class Decodes(Protocol):
    """A module whose `logits` are those of the pixels, (N, C*H*W)."""

    def logits(self, latents: Tensor, labels: Tensor) -> Tensor: ...


class Encoder(nn.Module):
    """Images, and labels where it is conditional, to the posterior's mean and log-variance.

    Seed 0's: one hidden layer (784-400-40). With a `grain` above 1 it sees a coarser image, of
    `pixels` values.
    """

    def __init__(
        self,
        pixels: int,
        num_labels: int,
        latent: int,
        hidden: int,
        label_scale: float = 1.0,
        grain: int = 1,
    ) -> None:
        super().__init__()
        self.grain = grain
        self.num_labels = num_labels  # 0: the label is not read
        self.label_scale = label_scale
        self.inner = nn.Linear(pixels + num_labels, hidden)
        self.outer = nn.Linear(hidden, 2 * latent)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        inputs = coarsened(images, self.grain).flatten(1)
        if self.num_labels:
            inputs = torch.cat([inputs, self.label_scale * self.words(labels, inputs)], 1)
        mean, log_variance = self.outer(F.relu(self.inner(inputs))).chunk(2, dim=1)
        return mean, log_variance.clamp(-12, 6)

    def words(self, labels: Tensor, like: Tensor) -> Tensor:
        """(N, num_labels): what the layers are told of the labels."""
        return one_hot(labels, self.num_labels, like=like)


class VariationalAutoencoder(nn.Module):
    """An encoder and a decoder with the negative evidence bound of each example as its loss."""

    encoder: Any  # the very module it was given, an `Encodes`
    decoder: Any  # likewise, a `Decodes`

    def __init__(self, encoder: Encodes, decoder: Decodes) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def example_losses(
        self, images: Tensor, labels: Tensor, noise: Tensor, kl_weight: float
    ) -> Tensor:
        """(N,): a sum of terms of one example each, so a gradient a example exists."""
        logits, divergence = self.parts(images, labels, noise)
        error = F.binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="none")
        return error.sum(1) + kl_weight * divergence

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor, kl_weight: float) -> Tensor:
        """`example_losses` up to rounding, for `torch.func.functional_call`.

        Under vmap it is half as fast again: that takes the cross-entropy apart into a dozen
        operations, and these as they are.
        """
        logits, divergence = self.parts(images, labels, noise)
        error = F.softplus(logits).sum(1) - (images.flatten(1) * logits).sum(1)
        return error + kl_weight * divergence

    def parts(self, images: Tensor, labels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the reconstruction, and how far each posterior is from the prior, (N,)."""
        mean, log_variance = self.encoder(images, labels)
        latents = mean + (0.5 * log_variance).exp() * noise
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return self.decoder.logits(latents, labels), divergence.sum(1)
