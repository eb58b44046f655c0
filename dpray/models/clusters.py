"""A conditional VAE that is told two words: the class of an image, and the cluster it fell into.

A pair of them is a *cell*, numbered class by class: cell = label * num_clusters + cluster. The
words stand beside each other, so what is learnt of a cluster is learnt from all classes in it.
Shapes: S classes, K clusters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpray.models.autoencoders import Encoder
from dpray.models.generators import ConditionalDecoder, Shape, one_hot


def two_words(cells: Tensor, num_classes: int, num_clusters: int, *, like: Tensor) -> Tensor:
    """(N, S + K): the one-hot class and the one-hot cluster of every cell."""
    classes = one_hot(cells // num_clusters, num_classes, like=like)
    return torch.cat([classes, one_hot(cells % num_clusters, num_clusters, like=like)], 1)


class CellEncoder(Encoder):
    def __init__(
        self,
        pixels: int,
        num_classes: int,
        num_clusters: int,
        latent: int,
        hidden: int,
        label_scale: float = 1.0,
    ) -> None:
        super().__init__(pixels, num_classes + num_clusters, latent, hidden, label_scale)
        self.each = (num_classes, num_clusters)

    def words(self, labels: Tensor, like: Tensor) -> Tensor:
        return two_words(labels, *self.each, like=like)


class CellDecoder(ConditionalDecoder):
    """What is released: to draw a class is to draw one of its clusters, and a latent."""

    shares: Tensor  # (S, K): how often a cluster is drawn for a class; rows add up to one

    def __init__(
        self,
        shape: Shape,
        num_classes: int,
        num_clusters: int,
        latent: int,
        hidden: int,
        label_scale: float = 1.0,
    ) -> None:
        super().__init__(shape, num_classes + num_clusters, latent, hidden, label_scale)
        self.each = (num_classes, num_clusters)
        self.register_buffer("shares", torch.full(self.each, 1 / num_clusters))

    def words(self, labels: Tensor, like: Tensor) -> Tensor:
        return two_words(labels, *self.each, like=like)

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        labels = labels.cpu()
        drawn = torch.multinomial(self.shares.cpu()[labels], 1, replacement=True, generator=rng)
        return super().forward(labels * self.each[1] + drawn.squeeze(1), rng)
