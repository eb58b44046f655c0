"""The six classifiers on which Private Set Generation (Chen et al. 2022) is measured.

Images in [0, 1] to logits, scaled by public constants. Normalisation is within an image
(`GroupNorm(C, C)`), never over a batch: no layer mixes examples, so any of these may also be
trained under differential privacy. Where images are below 32x32 the first convolution pads by
two more on each side (not in resnet18), which takes 28x28 to the size these were made for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpray.errors import BadInput, unknown
from dpray.models.classifiers import Pixels

Shape = tuple[int, int, int]

_VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")

# The smallest side of an image. With 28, vgg11 has 2x2 before its last pooling, and a single value
# cannot be normalised; with 25, resnet18 has 4x4 to average after three halvings, rounded up.
SMALLEST = {"convnet": 4, "lenet": 12, "alexnet": 4, "vgg11": 28, "resnet18": 25, "mlp-psg": 1}


def refuse_too_small(name: str, shape: Shape) -> None:
    if min(shape[1:]) < SMALLEST[name]:
        raise BadInput(
            f"{name} needs images of at least {SMALLEST[name]}x{SMALLEST[name]}, "
            f"these are {shape[1]}x{shape[2]}; mlp-psg takes any size"
        )


def make_architecture(name: str, shape: Shape, num_classes: int) -> nn.Sequential:
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name](shape, num_classes)


def convnet(shape: Shape, num_classes: int, width: int = 128) -> nn.Sequential:
    """Three blocks of convolution, normalisation and pooling: PSG's own network."""
    refuse_too_small("convnet", shape)
    layers: list[nn.Module] = []
    channels, padding = shape[0], 1 + _widening(shape)
    for _ in range(3):
        layers += [
            nn.Conv2d(channels, width, 3, padding=padding),
            nn.GroupNorm(width, width),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
        channels, padding = width, 1
    return _with_output(layers, shape, num_classes)


def lenet(shape: Shape, num_classes: int) -> nn.Sequential:
    refuse_too_small("lenet", shape)
    layers = [
        nn.Conv2d(shape[0], 6, 5, padding=_widening(shape)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    flat = _flat_size(layers, shape)
    layers += [nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return _with_output(layers, shape, num_classes)


def alexnet(shape: Shape, num_classes: int) -> nn.Sequential:
    refuse_too_small("alexnet", shape)
    layers = [
        nn.Conv2d(shape[0], 128, 5, padding=2 + _widening(shape)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(192, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 192, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(192, 192, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return _with_output(layers, shape, num_classes)


def vgg11(shape: Shape, num_classes: int) -> nn.Sequential:
    refuse_too_small("vgg11", shape)
    layers: list[nn.Module] = []
    channels, padding = shape[0], 1 + _widening(shape)
    for item in _VGG11:
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            continue
        conv = nn.Conv2d(channels, item, 3, padding=padding)
        layers += [conv, nn.GroupNorm(item, item), nn.ReLU()]
        channels, padding = item, 1
    return _with_output(layers, shape, num_classes)


def resnet18(shape: Shape, num_classes: int) -> nn.Sequential:
    refuse_too_small("resnet18", shape)
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], 64, 3, padding=1, bias=False),
        nn.GroupNorm(64, 64),
        nn.ReLU(),
    ]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(channels, width, stride), ResidualBlock(width, width, 1)]
        channels = width
    return _with_output([*layers, nn.AvgPool2d(4)], shape, num_classes)


def mlp_psg(shape: Shape, num_classes: int) -> nn.Sequential:
    """Two hidden layers of 128; `yardsticks.mlp` is another, smaller one."""
    size = shape[0] * shape[1] * shape[2]
    hidden = [nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    return _with_output([nn.Flatten(), *hidden], shape, num_classes)


class ResidualBlock(nn.Module):
    """ResNet's basic block, with normalisation within each image."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(width, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(width, width),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut.append(nn.Conv2d(channels, width, 1, stride=stride, bias=False))
            self.shortcut.append(nn.GroupNorm(width, width))

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.body(features) + self.shortcut(features))


def _with_output(layers: list[nn.Module], shape: Shape, num_classes: int) -> nn.Sequential:
    """Scaling in front of the layers, a linear classifier behind them."""
    output = nn.Linear(_flat_size(layers, shape), num_classes)
    return nn.Sequential(Pixels(shape), *layers, nn.Flatten(), output)


@torch.no_grad()
def _flat_size(layers: list[nn.Module], shape: Shape) -> int:
    return nn.Sequential(*layers)(torch.zeros(1, *shape)).numel()


def _widening(shape: Shape) -> int:
    """Padding beyond the usual on each side of the first convolution's input."""
    return 2 if min(shape[1:]) < 32 else 0


ARCHITECTURES: dict[str, Callable[[Shape, int], nn.Sequential]] = {
    "convnet": convnet,
    "lenet": lenet,
    "alexnet": alexnet,
    "vgg11": vgg11,
    "resnet18": resnet18,
    "mlp-psg": mlp_psg,
}
