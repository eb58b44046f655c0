"""The generator of DP-Sinkhorn: an embedded label and a latent, enlarged twice to an image.

Cao et al. 2021, https://arxiv.org/abs/2111.01177, with its widths as a setting. Its BatchNorm sees
generated images alone: it must not be trained on private batches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpray.models.generators import Shape

_SLOPE = 0.2  # of LeakyReLU below zero
_WORDS = 8  # numbers that stand for a label


class DeconvGenerator(nn.Module):
    """`hidden` maps at the full size, twice as many at half of it and four times at a quarter."""

    def __init__(self, shape: Shape, num_classes: int, latent: int, hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.shape: Shape = (channels, height, width)
        self.latent = latent
        self.words = nn.Embedding(num_classes, _WORDS)
        self.small = (4 * hidden, -(-height // 4), -(-width // 4))
        # What a transposed convolution does to a map of one pixel is a linear layer.
        self.first = nn.Linear(latent + _WORDS, math.prod(self.small))
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(4 * hidden), nn.LeakyReLU(_SLOPE)),
            nn.ConvTranspose2d(4 * hidden, 2 * hidden, 4, stride=2, padding=1),
            *(nn.BatchNorm2d(2 * hidden), nn.LeakyReLU(_SLOPE)),
            nn.ConvTranspose2d(2 * hidden, hidden, 4, stride=2, padding=1),
            *(nn.BatchNorm2d(hidden), nn.LeakyReLU(_SLOPE)),
            nn.Conv2d(hidden, channels, 3, padding=1),
        )

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.to(self.words.weight.device)
        latents = torch.rand(len(labels), self.latent, generator=rng).to(labels.device)
        inputs = torch.cat([latents, self.words(labels)], 1)
        maps = self.layers(self.first(inputs).reshape(-1, *self.small))
        # Cut to size, for images whose sides are no multiples of four.
        whole = maps[:, :, : self.shape[1], : self.shape[2]]
        return (whole.tanh() + 1) / 2
