"""Images drawn from Gaussians in a linear subspace: a mixture of them for every class.

Nothing is trained here: the numbers are set once, from released moments. Shapes: D pixels, K
dimensions of the subspace, S classes, M components a class. Where images are `posed` a vector of
the subspace is an upright image and the five numbers of how it lies (`poses`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpray.models.generators import Shape, normals
from dpray.models.poses import NUMBERS, drawn_in_pose
from dpray.models.warped_sets import warped


class GaussianMixture(nn.Module):
    basis: Tensor  # (D, K), orthonormal columns; five rows more where posed
    weights: Tensor  # (S, M), rows add up to one
    means: Tensor  # (S, M, K)
    factors: Tensor  # (S, M, K, K): a covariance is factor times its transpose

    def __init__(
        self,
        shape: Shape,
        num_classes: int,
        dimensions: int,
        components: int,
        posed: bool = False,
        warp: float = 0.0,
    ) -> None:
        super().__init__()
        self.shape: Shape = (shape[0], shape[1], shape[2])
        self.posed, self.warp = posed, warp
        pixels = shape[0] * shape[1] * shape[2]
        each = (num_classes, components)
        self.register_buffer("basis", torch.zeros(pixels + NUMBERS * posed, dimensions))
        self.register_buffer("weights", torch.full(each, 1 / components))
        self.register_buffer("means", torch.zeros(*each, dimensions))
        self.register_buffer("factors", torch.zeros(*each, dimensions, dimensions))

    def points(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        """(N, K): where the images of these labels lie in the subspace."""
        labels = labels.to(self.basis.device)
        drawn = torch.multinomial(self.weights[labels].cpu(), 1, replacement=True, generator=rng)
        components = drawn.squeeze(1).to(labels.device)
        noise = normals(rng, len(labels), self.basis.shape[1], like=self.basis)
        points = self.means[labels, components].clone()
        for label, component in torch.stack([labels, components], 1).unique(dim=0).tolist():
            rows = (labels == label) & (components == component)
            points[rows] += noise[rows] @ self.factors[label, component].T
        return points

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        images = self.images(self.points(labels, rng))
        return warped(images, self.warp, rng) if self.warp > 0 else images

    def cut_off(self, points: Tensor) -> Tensor:
        """(N, D): the vectors at these points of the subspace, with pixels from 0 to 1."""
        values = points @ self.basis.T
        if not self.posed:
            return values.clamp(0, 1)
        return torch.cat([values[:, :-NUMBERS].clamp(0, 1), values[:, -NUMBERS:]], 1)

    def images(self, points: Tensor) -> Tensor:
        """What lies at these points of the subspace."""
        vectors = self.cut_off(points)
        return (
            drawn_in_pose(vectors, self.shape) if self.posed else vectors.reshape(-1, *self.shape)
        )
