"""Public models of model inversion: autoencoders and generators trained on public images alone.

`decode` takes latents (N, latent) to images (N, C, H, W) in [0, 1]; autoencoders `encode` too.
In evaluation mode every image depends on its own latent and every latent on its own image:
GroupNorm in the autoencoders, and in the generators BatchNorm, then an affine map with public
numbers. Shapes: N records, C channels, H, W pixels.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from dpray.models.generators import Shape

_SLOPE = 0.2  # of LeakyReLU below zero
_MAPS = (8, 16, 32)  # of the convolutional autoencoder, each of half the size of the one before


class DecodesLatents(Protocol):
    """What model inversion needs of a public model: images from latents."""

    latent: int
    shape: Shape

    def decode(self, latents: Tensor) -> Tensor:
        """(N, latent) to (N, C, H, W) in [0, 1]."""
        ...


class Autoencodes(DecodesLatents, Protocol):
    def encode(self, images: Tensor) -> Tensor:
        """(N, C, H, W) to (N, latent)."""
        ...


class FcAutoencoder(nn.Module):
    """Two linear layers each way: 784-128-100 and 100-128-784 for digits."""

    def __init__(self, shape: Shape, latent: int = 100, hidden: int = 128) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.latent = latent
        pixels = math.prod(self.shape)
        self.encoder = nn.Sequential(
            nn.Linear(pixels, hidden), nn.LeakyReLU(_SLOPE), nn.Linear(hidden, latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Sigmoid()
        )

    def encode(self, images: Tensor) -> Tensor:
        return self.encoder(images.flatten(1))

    def decode(self, latents: Tensor) -> Tensor:
        return self.decoder(latents).reshape(-1, *self.shape)

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))


class ConvAutoencoder(nn.Module):
    """Three convolutions that halve the maps, a linear layer to the latents, and all of it back."""

    def __init__(self, shape: Shape, latent: int = 100) -> None:
        super().__init__()
        channels, height, width = shape
        self.shape: Shape = (channels, height, width)
        self.latent = latent
        sizes = [(height, width)]
        for _ in _MAPS:
            height, width = -(-height // 2), -(-width // 2)
            sizes.append((height, width))
        widths = (channels, *_MAPS)
        self.small: Shape = (_MAPS[-1], *sizes[-1])
        self.down = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(few, many, 3, stride=2, padding=1), *_after(many))
                for few, many in pairwise(widths)
            )
        )
        self.to_latent = nn.Linear(math.prod(self.small), latent)
        self.from_latent = nn.Linear(latent, math.prod(self.small))
        up: list[nn.Module] = []
        for place in reversed(range(len(_MAPS))):
            up.append(_enlarging(widths[place + 1], widths[place], sizes[place]))
            if place:
                up.extend(_after(widths[place]))
        self.up = nn.Sequential(*up)

    def encode(self, images: Tensor) -> Tensor:
        return self.to_latent(self.down(images).flatten(1))

    def decode(self, latents: Tensor) -> Tensor:
        maps = F.leaky_relu(self.from_latent(latents), _SLOPE).reshape(-1, *self.small)
        return self.up(maps).sigmoid()

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))


class FcGenerator(nn.Module):
    """One hidden layer: 100-256-784 for digits.

    Its BatchNorm sees latents alone: a generated image never stands for a private batch.
    """

    def __init__(self, shape: Shape, latent: int = 100, hidden: int = 256) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.latent = latent
        self.layers = nn.Sequential(
            *(nn.Linear(latent, hidden), nn.ReLU(), nn.BatchNorm1d(hidden)),
            nn.Linear(hidden, math.prod(self.shape)),
        )

    def decode(self, latents: Tensor) -> Tensor:
        return self.layers(latents).sigmoid().reshape(-1, *self.shape)

    def forward(self, latents: Tensor) -> Tensor:
        return self.decode(latents)


class ConvLatentGenerator(nn.Module):
    """A linear layer to maps of a quarter of the size, then twice enlarge and convolve."""

    def __init__(self, shape: Shape, latent: int = 100, maps: int = 32) -> None:
        super().__init__()
        channels, height, width = shape
        self.shape: Shape = (channels, height, width)
        self.latent = latent
        self.small: Shape = (maps, -(-height // 4), -(-width // 4))
        size = math.prod(self.small)
        self.first = nn.Sequential(nn.Linear(latent, size), nn.ReLU(), nn.BatchNorm1d(size))
        half = (-(-height // 2), -(-width // 2))
        self.up = nn.Sequential(
            *(_enlarging(maps, maps // 2, half), nn.ReLU(), nn.BatchNorm2d(maps // 2)),
            _enlarging(maps // 2, channels, (height, width)),
        )

    def decode(self, latents: Tensor) -> Tensor:
        return self.up(self.first(latents).reshape(-1, *self.small)).sigmoid()

    def forward(self, latents: Tensor) -> Tensor:
        return self.decode(latents)


def _enlarging(many: int, few: int, size: tuple[int, int]) -> nn.ConvTranspose2d:
    """Maps of half of `size`, rounded up, to maps of exactly `size`."""
    padding = (1 - size[0] % 2, 1 - size[1] % 2)
    return nn.ConvTranspose2d(many, few, 3, stride=2, padding=1, output_padding=padding)


def _after(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.GroupNorm(math.gcd(channels, 4), channels), nn.LeakyReLU(_SLOPE)
