"""Classifiers of images in [0, 1]: fixed features, then a trainable head.

`cnn` is seed 0's network (421,642 parameters on 28x28x1), `tanh-cnn` the small network with
tempered sigmoids of Papernot et al. (2021), `mlp` and `linear` what they say. Features are
`pixels` (scaled by public constants) or `scatter`. No layer mixes examples: any of these may be
trained under differential privacy.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from dpray.errors import BadInput, unknown
from dpray.models.scatter import Scatter

Head = Literal["linear", "mlp", "cnn", "tanh-cnn"]
Features = Literal["scatter", "pixels"]
Shape = tuple[int, int, int]


class Pixels(nn.Module):
    """Images to [-1, 1] by constants: needs no statistics of any data."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.out_shape: Shape = shape

    def forward(self, images: Tensor) -> Tensor:
        return images * 2 - 1


class NormalisedScatter(nn.Module):
    """Scattering coefficients, normalised over groups of channels within each record.

    Guarantee: record-local. The features of a record depend on that record alone, so they may
    be computed once and kept; no statistic over records is taken (Tramer and Boneh 2021).
    """

    GROUPS = 27  # of 81 channels a colour, as in the paper

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.scatter = Scatter(shape)
        self.groups = self.GROUPS * shape[0]
        self.out_shape: Shape = self.scatter.out_shape

    def forward(self, images: Tensor) -> Tensor:
        return F.group_norm(self.scatter(images), self.groups)


def make_features(features: Features, shape: Shape) -> Pixels | NormalisedScatter:
    if features == "pixels":
        return Pixels(shape)
    if features == "scatter":
        return NormalisedScatter(shape)
    raise unknown("features", features, ("pixels", "scatter"))


class ImageClassifier(nn.Module):
    """Images in [0, 1] to logits: `features` is fixed, `head` is what training changes."""

    def __init__(self, model: Head, features: Features, shape: Shape, num_classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.features = make_features(features, (channels, height, width))
        self.head = make_head(model, self.features.out_shape, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits


def make_head(model: Head, shape: Shape, num_classes: int) -> nn.Sequential:
    heads = {"linear": _linear, "mlp": _mlp, "cnn": _cnn, "tanh-cnn": _tanh_cnn}
    if model not in heads:
        raise unknown("model", model, heads)
    smallest = {"cnn": 4, "tanh-cnn": 14}.get(model, 1)
    if min(shape[1:]) < smallest:
        raise BadInput(
            f"model {model} needs inputs of at least {smallest}x{smallest}, "
            f"these are {shape[1]}x{shape[2]}; choose linear or mlp"
        )
    return heads[model](shape, num_classes)


def _linear(shape: Shape, num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(_size(shape), num_classes))


def _mlp(shape: Shape, num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(_size(shape), 128), nn.ReLU(), nn.Linear(128, num_classes)
    )


def _cnn(shape: Shape, num_classes: int) -> nn.Sequential:
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


def _tanh_cnn(shape: Shape, num_classes: int) -> nn.Sequential:
    channels, height, width = shape
    layers = [
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    ]

    def after(size: int) -> int:
        size = (size + 4 - 8) // 2 + 1 - 1
        return (size - 4) // 2 + 1 - 1

    flat = 32 * after(height) * after(width)
    return nn.Sequential(*layers, nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, num_classes))


def _size(shape: Shape) -> int:
    return shape[0] * shape[1] * shape[2]
