"""The generator that Private Set Generation puts behind its images: GS-WGAN's, after DCGAN.

A latent and a label through a linear layer and three transposed convolutions, normalised within
each pixel, never over a batch. It is trained on noisy gradients alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]


class PriorGenerator(nn.Module):
    """With `width` 64 the published one. It makes 28x28; other sizes are scaled from that."""

    def __init__(self, shape: Shape, num_classes: int, width: int = 64, latent: int = 10) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.num_classes, self.latent, self.width = num_classes, latent, width
        self.start = nn.Linear(latent + num_classes, 4 * width * 4 * 4)
        self.first = nn.ConvTranspose2d(4 * width, 2 * width, 5)
        self.second = nn.ConvTranspose2d(2 * width, width, 5)
        self.last = nn.ConvTranspose2d(width, shape[0], 8, stride=2)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        inputs = torch.cat([latents, F.one_hot(labels, self.num_classes).to(latents)], 1)
        maps = self.start(inputs).reshape(-1, 4 * self.width, 4, 4)
        maps = self.first(_unit_pixels(F.relu(maps)))[:, :, :7, :7]
        maps = self.second(_unit_pixels(F.relu(maps)))
        images = self.last(_unit_pixels(F.relu(maps)))
        if images.shape[2:] != self.shape[1:]:
            images = F.interpolate(images, size=self.shape[1:], mode="bilinear")
        # The published one has no last activation; this keeps images where images are.
        return images.sigmoid()


def _unit_pixels(maps: Tensor) -> Tensor:
    return maps / (maps.square().mean(1, keepdim=True) + 1e-8).sqrt()
