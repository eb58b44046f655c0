"""What is learnt: the pixels themselves, or a generator whose images they are.

Labels are balanced and public, images start from noise or released draws and stay in [0, 1]: the
set can be used as any images can. `forward(rows)` gives some of the images, ready to be
differentiated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray import models
from dpray.errors import BadInput
from dpray.models.generators import Shape


def balanced_labels(num_classes: int, per_class: int) -> Tensor:
    return torch.arange(num_classes).repeat_interleave(per_class)


def refuse_wide_blur(blur: float, shape: Shape) -> None:
    if not 0 <= blur <= min(shape[1:]) / 6:
        raise BadInput(f"blur {blur:g} must be from 0 to a sixth of a side")


class LearntImages(nn.Module, ABC):
    labels: Tensor  # (N,)

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.register_buffer("labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def optimizer(self, lr: float, momentum: float) -> torch.optim.Optimizer: ...

    def settle(self) -> None:
        """After a step: back to where images are."""

    @torch.no_grad()
    def all(self) -> Tensor:
        images: Tensor = self(torch.arange(len(self)))
        return images.detach().clone()


class SmoothPixels(LearntImages):
    """Pixels that are seen through a small blur: what is learnt stays free of speckles."""

    kernel: Tensor  # (K,)

    def __init__(self, labels: Tensor, start: Tensor, blur: float) -> None:
        """`blur` is the deviation of the Gaussian in pixels; 0 for none."""
        super().__init__(labels)
        self.pixels = nn.Parameter(start.clone())
        reach = math.ceil(3 * blur)
        places = torch.arange(-reach, reach + 1).float()
        kernel = torch.exp(-0.5 * (places / max(blur, 1e-3)).square())
        self.register_buffer("kernel", kernel / kernel.sum())

    def forward(self, rows: Tensor) -> Tensor:
        pixels = self.pixels[rows]
        count, channels, height, width = pixels.shape
        maps = pixels.reshape(count * channels, 1, height, width)
        reach = len(self.kernel) // 2
        maps = F.conv2d(maps, self.kernel.reshape(1, 1, 1, -1), padding=(0, reach))
        maps = F.conv2d(maps, self.kernel.reshape(1, 1, -1, 1), padding=(reach, 0))
        return maps.reshape(count, channels, height, width)

    def optimizer(self, lr: float, momentum: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=lr, betas=(momentum, 0.99))

    @torch.no_grad()
    def settle(self) -> None:
        self.pixels.clamp_(0, 1)


class NoisyStart(SmoothPixels):
    """Pixels that start as noise around grey and are moved by SGD, as published for PSG.

    Images that were released before may be given in place of some: they stay as they are.
    """

    given: Tensor  # (N, C, H, W)
    is_given: Tensor  # (N,)

    def __init__(
        self, labels: Tensor, shape: Shape, start_noise: float, blur: float, rng: torch.Generator
    ) -> None:
        noise = torch.randn(len(labels), *shape, generator=rng)
        super().__init__(labels, (0.5 + start_noise * noise).clamp(0, 1), blur)
        self.register_buffer("given", torch.zeros_like(noise))
        self.register_buffer("is_given", torch.zeros(len(labels), dtype=torch.bool))

    def give(self, rows: Tensor, images: Tensor) -> None:
        self.given[rows], self.is_given[rows] = images, True

    def forward(self, rows: Tensor) -> Tensor:
        learnt = super().forward(rows)
        return torch.where(self.is_given[rows, None, None, None], self.given[rows], learnt)

    def optimizer(self, lr: float, momentum: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=lr, momentum=momentum)


class GeneratedImages(LearntImages):
    """The images of a generator at latents that never change: its weights are learnt."""

    latents: Tensor  # (N, L)

    def __init__(
        self, labels: Tensor, shape: Shape, num_classes: int, width: int, rng: torch.Generator
    ) -> None:
        super().__init__(labels)
        arguments = {"shape": list(shape), "num_classes": num_classes, "width": width}
        self.generator = models.build("prior-generator", **arguments)
        latent = self.generator.latent
        assert isinstance(latent, int)
        self.register_buffer("latents", torch.randn(len(labels), latent, generator=rng))

    def forward(self, rows: Tensor) -> Tensor:
        images: Tensor = self.generator(self.latents[rows], self.labels[rows])
        return images

    def optimizer(self, lr: float, momentum: float) -> torch.optim.Optimizer:
        """Adam, as published for the generator; it has a momentum of its own."""
        return torch.optim.Adam(self.generator.parameters(), lr=lr)
