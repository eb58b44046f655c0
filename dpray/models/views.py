"""As what an image is seen: the numbers whose moments are asked, and the image again from them.

`pixels`: as it is. `upright`: upright, of one size and in the middle, with five numbers of how it
lay (`poses`). `ink`: upright too, and every pixel told by how far it lies from the edge of the ink
(`distances`). The last two are for handwriting and the like. Record-local, and nothing is learnt.
Shapes: N images of C channels and H, W pixels; D = C * H * W; V numbers of a view.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpray.errors import unknown
from dpray.models.distances import ink, nearness
from dpray.models.generators import Shape
from dpray.models.poses import NUMBERS, drawn_in_pose, upright_with_poses


class Pixels:
    """An image as it is. The other views have more numbers after D of the same kind."""

    beside = 0  # numbers that are not pixels
    length = 1.0  # of its vectors, in units of those of images as they are

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pixels = math.prod(shape)

    @property
    def size(self) -> int:
        return self.pixels + self.beside

    def vectors(self, images: Tensor) -> Tensor:
        """(N, V)."""
        return images.flatten(1)

    def cut_off(self, vectors: Tensor) -> Tensor:
        """(N, V): pixels from 0 to 1, as those of every record are."""
        within = vectors[:, : self.pixels].clamp(0, 1)
        return torch.cat([within, vectors[:, self.pixels :]], 1)

    def images(self, vectors: Tensor) -> Tensor:
        """(N, C, H, W), of vectors that were cut off."""
        return vectors.reshape(-1, *self.shape)


class Upright(Pixels):
    beside = NUMBERS
    length = 1.2  # upright images fill more of their frame

    def vectors(self, images: Tensor) -> Tensor:
        return upright_with_poses(images)

    def images(self, vectors: Tensor) -> Tensor:
        return drawn_in_pose(vectors, self.shape)


class Ink(Upright):
    length = 1.0

    def vectors(self, images: Tensor) -> Tensor:
        seen = super().vectors(images)
        near = nearness(seen[:, : self.pixels].reshape(-1, *self.shape))
        return torch.cat([near.flatten(1), seen[:, self.pixels :]], 1)

    def images(self, vectors: Tensor) -> Tensor:
        drawn = ink(vectors[:, : self.pixels])
        return super().images(torch.cat([drawn, vectors[:, self.pixels :]], 1))


VIEWS: dict[str, type[Pixels]] = {"pixels": Pixels, "upright": Upright, "ink": Ink}


def view_as(name: str, shape: Shape) -> Pixels:
    refuse_unknown_view(name)
    return VIEWS[name](shape)


def refuse_unknown_view(name: str) -> None:
    if name not in VIEWS:
        raise unknown("view", name, VIEWS)
