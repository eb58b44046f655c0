"""Networks of a conditional GAN over images: critics of an image and its label, and a generator.

No layer normalises over a batch, so the critics may be trained under privacy. `Dcgan...` are the
pair of Bie et al. 2023 (https://arxiv.org/abs/2302.02936), whose maps are halved or doubled three
times. Shapes: N examples, C channels, H, W pixels in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.errors import BadInput
from dpray.models.generators import Shape, normals, one_hot

_SLOPE = 0.2  # of LeakyReLU below zero
_LEAST_SIDE = 8  # of an image whose sides are halved three times


class MlpCritic(nn.Module):
    """Pixels beside the one-hot label, times `label_scale`, through hidden layers to a score.

    With `own_scores` every class has a score of its own and the label picks it: images are then
    told apart by their class even where the label among the inputs is too quiet for that.
    """

    def __init__(
        self,
        shape: Shape,
        num_classes: int,
        hidden: Sequence[int],
        label_scale: float = 1.0,
        activation: Literal["relu", "leaky-relu"] = "leaky-relu",
        own_scores: bool = False,
    ) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise BadInput(f"hidden {list(hidden)} must be a list of numbers of at least 1")
        self.num_classes, self.label_scale = num_classes, label_scale
        widths = [math.prod(shape) + num_classes, *hidden]
        inner: list[nn.Module] = []
        for before, after in pairwise(widths):
            bend = nn.ReLU() if activation == "relu" else nn.LeakyReLU(_SLOPE)
            inner += [nn.Linear(before, after), bend]
        scores = num_classes if own_scores else 1
        self.layers = nn.Sequential(*inner, nn.Linear(widths[-1], scores))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """(N, C, H, W) and (N,) to (N,): no sigmoid, which the loss takes care of."""
        words = one_hot(labels, self.num_classes, like=images)
        inputs = torch.cat([images.flatten(1), self.label_scale * words], 1)
        scores: Tensor = self.layers(inputs)
        return scores.squeeze(1) if scores.shape[1] == 1 else (scores * words).sum(1)


class DcganCritic(nn.Module):
    """Four convolutions: the image and planes of its label side by side, then both together."""

    def __init__(self, shape: Shape, num_classes: int, width: int) -> None:
        super().__init__()
        channels, height, width_of_image = shape
        self.num_classes, self.map_size = num_classes, (height, width_of_image)
        self.of_image = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.of_label = nn.Conv2d(num_classes, width, 4, stride=2, padding=1)
        self.second = nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1)
        self.third = nn.Conv2d(4 * width, 8 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(8 * width * math.prod(_sizes(shape)[-1]), 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        words = one_hot(labels, self.num_classes, like=images)
        planes = words[:, :, None, None].expand(-1, -1, *self.map_size)
        maps = torch.cat([self.of_image(images), self.of_label(planes)], 1)
        maps = F.leaky_relu(self.second(F.leaky_relu(maps, _SLOPE)), _SLOPE)
        maps = F.leaky_relu(self.third(maps), _SLOPE)
        scores: Tensor = self.head(maps.flatten(1))
        return scores.squeeze(1)


class DcganGenerator(nn.Module):
    """A latent and a label, each to small maps, which are enlarged three times together."""

    def __init__(self, shape: Shape, num_classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.num_classes, self.latent = num_classes, latent
        whole, half, quarter, eighth = _sizes(shape)
        self.small = (4 * width, *eighth)
        # What a transposed convolution does to a map of one pixel is a linear layer.
        self.of_latent = nn.Linear(latent, math.prod(self.small))
        self.of_label = nn.Linear(num_classes, math.prod(self.small))
        self.first = _enlarging(8 * width, 4 * width, 3, eighth, quarter)
        self.second = _enlarging(4 * width, 2 * width, 4, quarter, half)
        self.last = _enlarging(2 * width, shape[0], 4, half, whole)

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.to(self.of_latent.weight.device)
        latents = normals(rng, len(labels), self.latent, like=self.of_latent.weight)
        words = one_hot(labels, self.num_classes, like=latents)
        both = (self.of_latent(latents), self.of_label(words))
        maps = torch.cat([part.reshape(-1, *self.small) for part in both], 1)
        for layer in (self.first, self.second):
            maps = layer(F.leaky_relu(maps, _SLOPE))
        return (self.last(F.leaky_relu(maps, _SLOPE)).tanh() + 1) / 2


def _sizes(shape: Shape) -> list[tuple[int, int]]:
    """Height and width of the image, and of maps halved once, twice and three times."""
    _, height, width = shape
    if min(height, width) < _LEAST_SIDE:
        raise BadInput(
            f"images of {height}x{width} are too small for network dcgan, which halves their "
            f"sides three times: they need {_LEAST_SIDE} pixels"
        )
    half, quarter = (height // 2, width // 2), (height // 4, width // 4)
    eighth = ((quarter[0] + 1) // 2, (quarter[1] + 1) // 2)
    return [(height, width), half, quarter, eighth]


def _enlarging(
    many: int, few: int, kernel: int, size: tuple[int, int], wanted: tuple[int, int]
) -> nn.ConvTranspose2d:
    """Maps of `size` to maps of exactly the `wanted` size, about twice as large."""
    without = [2 * (side - 1) - 2 + kernel for side in size]
    padding = (wanted[0] - without[0], wanted[1] - without[1])
    return nn.ConvTranspose2d(many, few, kernel, stride=2, padding=1, output_padding=padding)
