"""Generators: labels and a public random generator to images in [0, 1].

What a `Synthesizer` holds. `forward(labels, rng)` draws its own latents, on the CPU so that the
same seed gives the same images on every device. Shapes: N labels, C channels, H, W pixels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.errors import BadInput

Shape = tuple[int, int, int]


def normals(rng: torch.Generator, *size: int, like: Tensor) -> Tensor:
    return torch.randn(*size, generator=rng).to(like.device)


def one_hot(labels: Tensor, num_classes: int, *, like: Tensor) -> Tensor:
    """What `F.one_hot` gives, but also under `torch.func.vmap`, in the type of `like`."""
    return F.embedding(labels, torch.eye(num_classes, device=like.device, dtype=like.dtype))


class ConditionalDecoder(nn.Module):
    """The decoder of a conditional VAE: a latent from the prior and a label to an image.

    Two linear layers, as in seed 0's VAE (20-400-784). The label enters as a one-hot vector times
    `label_scale`: louder than one latent, so that the latents need not tell the classes apart.
    With no classes there is no label to read.
    With a `grain` g above 1 the layers give every g-th logit of a row and of a column, and a fixed
    bilinear map the rest: fewer parameters, so less noise where they are trained under privacy.
    """

    def __init__(
        self,
        shape: Shape,
        num_classes: int,
        latent: int,
        hidden: int,
        label_scale: float = 1.0,
        grain: int = 1,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if not 1 <= grain <= min(height, width):
            raise BadInput(
                f"a grain of {grain} does not fit images of {height}x{width}; "
                f"choose from 1 to {min(height, width)}"
            )
        self.shape: Shape = (channels, height, width)
        self.num_classes, self.latent, self.label_scale = num_classes, latent, label_scale
        self.grain = grain
        self.coarse = coarse_shape(self.shape, grain)
        # No buffers: they are public, follow from the shape, and belong in no release.
        self.rows = _bilinear(self.coarse[1], height)
        self.columns = _bilinear(self.coarse[2], width)
        self.inner = nn.Linear(latent + num_classes, hidden)
        self.outer = nn.Linear(hidden, math.prod(self.coarse))

    def logits(self, latents: Tensor, labels: Tensor) -> Tensor:
        """(N, C*H*W) before the sigmoid, which the loss takes care of."""
        inputs = latents
        if self.num_classes:
            inputs = torch.cat([latents, self.label_scale * self.words(labels, latents)], 1)
        logits = self.outer(F.relu(self.inner(inputs)))
        return logits if self.grain == 1 else self._enlarged(logits)

    def words(self, labels: Tensor, like: Tensor) -> Tensor:
        """(N, num_classes): what the layers are told of the labels."""
        return one_hot(labels, self.num_classes, like=like)

    def _enlarged(self, logits: Tensor) -> Tensor:
        # Two matrix products: several times faster on a processor than F.interpolate.
        maps = logits.reshape(-1, *self.coarse[1:]) @ self.columns.to(logits)
        return (self.rows.T.to(logits) @ maps).reshape(-1, math.prod(self.shape))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.to(self.outer.weight.device)
        latents = normals(rng, len(labels), self.latent, like=self.outer.weight)
        return self.logits(latents, labels).sigmoid().reshape(-1, *self.shape)


def coarse_shape(shape: Shape, grain: int) -> Shape:
    """Of images that show one value for every `grain` x `grain` pixels."""
    return shape[0], -(-shape[1] // grain), -(-shape[2] // grain)


def coarsened(images: Tensor, grain: int) -> Tensor:
    """(N, C, H, W) images in a coarser grain: means over squares, cut off at the edge."""
    return images if grain == 1 else F.avg_pool2d(images, grain, ceil_mode=True)


def _bilinear(coarse: int, size: int) -> Tensor:
    """(coarse, size): what a row of `coarse` pixels is multiplied with to be enlarged to `size`."""
    return F.interpolate(torch.eye(coarse)[None], size=size, mode="linear")[0]


class ClassDecoder(nn.Module):
    """The decoder of an unconditional VAE with a Gaussian over the latents of each class.

    How seed 0 makes images of a class; the statistics here are released ones.
    """

    means: Tensor  # (classes, latent)
    deviations: Tensor  # (classes, latent)

    def __init__(self, shape: Shape, num_classes: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.inner = nn.Linear(latent, hidden)
        self.outer = nn.Linear(hidden, shape[0] * shape[1] * shape[2])
        self.register_buffer("means", torch.zeros(num_classes, latent))
        self.register_buffer("deviations", torch.ones(num_classes, latent))

    def logits(self, latents: Tensor, labels: Tensor) -> Tensor:
        return self.outer(F.relu(self.inner(latents)))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.to(self.means.device)
        noise = normals(rng, len(labels), self.means.shape[1], like=self.means)
        latents = self.means[labels] + self.deviations[labels] * noise
        return self.logits(latents, labels).sigmoid().reshape(-1, *self.shape)


class MlpGenerator(nn.Module):
    """A label and a normal latent through two hidden layers.

    Its BatchNorm sees generated images alone: it must not be trained on private batches. A bias
    before it has no effect and a gradient of rounding errors: `biased` false leaves it out.
    """

    def __init__(
        self, shape: Shape, num_classes: int, latent: int, hidden: int, biased: bool = True
    ) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.num_classes, self.latent = num_classes, latent
        self.layers = nn.Sequential(
            nn.Linear(latent + num_classes, hidden, bias=biased),
            *(nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=biased), nn.BatchNorm1d(hidden), nn.ReLU()),
            nn.Linear(hidden, shape[0] * shape[1] * shape[2]),
        )

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        inputs = _labelled_latents(self.layers[0], labels, self.num_classes, self.latent, rng)
        return self.layers(inputs).sigmoid().reshape(-1, *self.shape)


class ConvGenerator(nn.Module):
    """DP-MERF's convolutional generator: two linear layers, then twice enlarge and convolve.

    As with `MlpGenerator`, BatchNorm sees generated images alone.
    """

    def __init__(
        self, shape: Shape, num_classes: int, latent: int, hidden: int, biased: bool = True
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.shape: Shape = (channels, height, width)
        self.num_classes, self.latent = num_classes, latent
        self.small = (16, -(-height // 4), -(-width // 4))
        size = self.small[0] * self.small[1] * self.small[2]
        self.layers = nn.Sequential(
            nn.Linear(latent + num_classes, hidden, bias=biased),
            *(nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, size, bias=biased), nn.BatchNorm1d(size), nn.ReLU()),
        )
        self.middle = nn.Conv2d(16, 8, 5, padding=2)
        self.last = nn.Conv2d(8, channels, 5, padding=2)

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        inputs = _labelled_latents(self.layers[0], labels, self.num_classes, self.latent, rng)
        maps = self.layers(inputs).reshape(-1, *self.small)
        maps = F.relu(self.middle(F.interpolate(maps, scale_factor=2, mode="bilinear")))
        maps = F.interpolate(maps, size=self.shape[1:], mode="bilinear")
        return self.last(maps).sigmoid()


def _labelled_latents(
    first: nn.Module, labels: Tensor, num_classes: int, latent: int, rng: torch.Generator
) -> Tensor:
    weight = first.weight
    assert isinstance(weight, Tensor)
    latents = normals(rng, len(labels), latent, like=weight)
    return torch.cat([latents, F.one_hot(labels.to(weight.device), num_classes).to(latents)], 1)


class ImageSet(nn.Module):
    """A small set of images, released as it is. To draw a label is to pick one of its images.

    It may hold snapshots of its own making: the images as they were after so many steps.
    """

    images: Tensor  # (N, C, H, W)
    labels: Tensor  # (N,)
    history: Tensor  # (K, N, C, H, W)
    history_steps: Tensor  # (K,)

    def __init__(self, shape: Shape, num_images: int, num_snapshots: int = 0) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(num_images, *shape))
        self.register_buffer("labels", torch.zeros(num_images, dtype=torch.long))
        if num_snapshots > 0:
            self.register_buffer("history", torch.zeros(num_snapshots, num_images, *shape))
            self.register_buffer("history_steps", torch.zeros(num_snapshots, dtype=torch.long))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        return self.images[rows_of(labels, self.labels, rng)]


def rows_of(wanted: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
    """For each wanted label a row at random of those that have it."""
    picked = torch.empty(len(wanted), dtype=torch.long)
    for label in wanted.unique().tolist():
        own = (labels == label).nonzero().flatten().cpu()
        if len(own) == 0:
            raise BadInput(f"the set holds no image of class {label}")
        rows = (wanted == label).nonzero().flatten().cpu()
        picked[rows] = own[torch.randint(len(own), (len(rows),), generator=rng)]
    return picked.to(labels.device)
