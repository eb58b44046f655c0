"""The two small networks by which synthetic images are usually measured (as in DP2-VAE).

Plain modules from images in [0, 1] of any shape to logits: `mlp` has one hidden layer of 100,
`cnn` two strided convolutions with dropout. Neither scales its input by anything learnt from data.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]


class ChannelsLast(nn.Module):
    """The same images, laid out in memory so that convolutions on a CPU are faster."""

    def forward(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


class HalfDropout(nn.Module):
    """Dropout with probability 1/2 from fair bits.

    The same distribution as `nn.Dropout(0.5)`, which on a CPU takes longer than the convolution
    before it: it draws a number per value, this draws one per eight.
    """

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        words = torch.empty(-(-values.numel() // 8), dtype=torch.int64, device=values.device)
        coins = words.random_(-(2**63), None).view(torch.int8)[: values.numel()]
        # Laid out in memory as the values are, or the product below would be several times slower.
        mask = torch.empty_like(values).copy_(coins.as_strided(values.shape, values.stride()) < 0)
        return values * mask.mul_(2)


def mlp(shape: Shape, num_classes: int) -> nn.Sequential:
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )


def cnn(shape: Shape, num_classes: int) -> nn.Sequential:
    channels, height, width = shape

    def after_two_strides(size: int) -> int:
        return -(-size // 4)  # a stride of two with padding rounds up, twice

    network = nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        HalfDropout(),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        HalfDropout(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * after_two_strides(height) * after_two_strides(width), num_classes),
    )
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
