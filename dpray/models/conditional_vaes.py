"""The convolutional pair of DP2-VAE: an encoder and a decoder that both read the label.

`channels` is the paper's list, (512, 256) for 28x28 and (512, 256, 128) for larger images. It
leaves the order open; here, as in the code it builds on, maps grow as they shrink in size: the
encoder goes through the list backwards (256, then 512), the decoder forwards. GroupNorm takes the
place of BatchNorm, whose running statistics would carry private values into a release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from dpray.errors import BadInput
from dpray.models.generators import Shape, normals, one_hot

_CHANNELS_A_GROUP = 16


class ConvEncoder(nn.Module):
    """Images and labels to the posterior's mean and log-variance.

    The label becomes a map beside the image; each block halves height and width, rounding up.
    """

    def __init__(
        self, shape: Shape, num_classes: int, latent: int, channels: Sequence[int]
    ) -> None:
        super().__init__()
        colours, height, width = shape
        sizes = _sizes(height, width, channels)
        self.num_classes, self.map_size = num_classes, (height, width)
        self.word = nn.Linear(num_classes, height * width)
        self.first = nn.Conv2d(colours, colours, 1)
        widths = [colours + 1, *reversed(channels)]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(few, many, 3, stride=2, padding=1), *_after(many))
                for few, many in pairwise(widths)
            )
        )
        features = widths[-1] * math.prod(sizes[-1])
        self.mean = nn.Linear(features, latent)
        self.log_variance = nn.Linear(features, latent)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        words = self.word(one_hot(labels, self.num_classes, like=images))
        words = words.reshape(-1, 1, *self.map_size)
        features = self.blocks(torch.cat([self.first(images), words], 1)).flatten(1)
        return self.mean(features), self.log_variance(features).clamp(-12, 6)


class ConvDecoder(nn.Module):
    """A latent from the prior and a label to an image: the encoder's blocks the other way round.

    The last layer gives logits, for pixels in [0, 1] and cross-entropy.
    """

    def __init__(
        self, shape: Shape, num_classes: int, latent: int, channels: Sequence[int]
    ) -> None:
        super().__init__()
        colours, height, width = shape
        sizes = _sizes(height, width, channels)
        self.shape: Shape = (colours, height, width)
        self.num_classes, self.latent = num_classes, latent
        self.small: Shape = (channels[0], *sizes[-1])
        self.first = nn.Linear(latent + num_classes, math.prod(self.small))
        # The last enlargement keeps its number of maps, as there.
        widths = [*channels, channels[-1]]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(_enlarging(many, few, size), *_after(few))
                for (many, few), size in zip(pairwise(widths), sizes[-2::-1], strict=True)
            )
        )
        self.last = nn.Conv2d(widths[-1], colours, 3, padding=1)

    def logits(self, latents: Tensor, labels: Tensor) -> Tensor:
        """(N, C*H*W) before the sigmoid, which the loss takes care of."""
        words = one_hot(labels, self.num_classes, like=latents)
        maps = self.first(torch.cat([latents, words], 1)).reshape(-1, *self.small)
        return self.last(self.blocks(maps)).flatten(1)

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.to(self.first.weight.device)
        latents = normals(rng, len(labels), self.latent, like=self.first.weight)
        return self.logits(latents, labels).sigmoid().reshape(-1, *self.shape)


def _sizes(height: int, width: int, channels: Sequence[int]) -> list[tuple[int, int]]:
    """Height and width of the maps before the first block and after each of them."""
    if not channels or min(channels) < 1:
        raise BadInput(f"channels {list(channels)} must be a list of numbers of at least 1")
    sizes = [(height, width)]
    for _ in channels:
        height, width = -(-height // 2), -(-width // 2)
        sizes.append((height, width))
    return sizes


def _enlarging(many: int, few: int, size: tuple[int, int]) -> nn.ConvTranspose2d:
    """Maps of half of `size`, rounded up, to maps of exactly `size`."""
    # Without it the size is odd: twice the smaller one less one.
    padding = (1 - size[0] % 2, 1 - size[1] % 2)
    return nn.ConvTranspose2d(many, few, 3, stride=2, padding=1, output_padding=padding)


def _after(channels: int) -> tuple[nn.Module, nn.Module]:
    groups = math.gcd(channels, max(1, channels // _CHANNELS_A_GROUP))
    return nn.GroupNorm(groups, channels), nn.LeakyReLU(0.01)
