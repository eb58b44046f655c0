"""Encoders of variational autoencoders: plain layers that may be trained under privacy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models.generators import ClassDecoder, ConditionalDecoder


class Encoder(nn.Module):
    """Images, and labels where it is conditional, to the posterior's mean and log-variance.

    Seed 0's: one hidden layer (784-400-40).
    """

    def __init__(
        self, pixels: int, num_labels: int, latent: int, hidden: int, label_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.num_labels = num_labels  # 0: the label is not read
        self.label_scale = label_scale
        self.inner = nn.Linear(pixels + num_labels, hidden)
        self.outer = nn.Linear(hidden, 2 * latent)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        inputs = images.flatten(1)
        if self.num_labels:
            words = self.label_scale * F.one_hot(labels, self.num_labels).to(inputs)
            inputs = torch.cat([inputs, words], 1)
        mean, log_variance = self.outer(F.relu(self.inner(inputs))).chunk(2, dim=1)
        return mean, log_variance.clamp(-12, 6)


class VariationalAutoencoder(nn.Module):
    """An encoder and a decoder with the negative evidence bound of each example as its loss."""

    def __init__(self, encoder: Encoder, decoder: ConditionalDecoder | ClassDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def example_losses(
        self, images: Tensor, labels: Tensor, noise: Tensor, kl_weight: float
    ) -> Tensor:
        """(N,): a sum of terms of one example each, so a gradient a example exists."""
        mean, log_variance = self.encoder(images, labels)
        latents = mean + (0.5 * log_variance).exp() * noise
        logits = self.decoder.logits(latents, labels)
        error = F.binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="none")
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return error.sum(1) + kl_weight * divergence.sum(1)
