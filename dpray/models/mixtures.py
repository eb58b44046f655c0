"""Images drawn from Gaussians in a linear subspace: a mixture of them for every class.

Nothing is trained here: the numbers are set once, from released moments. A vector of the subspace
is an image as a view tells it (`views`). What images have beside the subspace, the same for all
classes, is drawn as grain. Shapes: V numbers of a view, K dimensions of the subspace, G of the
grain, S classes, M components a class.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpray.models.generators import Shape, normals
from dpray.models.views import view_as
from dpray.models.warped_sets import warped


class GaussianMixture(nn.Module):
    basis: Tensor  # (V, K), orthonormal columns
    grain: Tensor  # (V, G): a factor, too
    weights: Tensor  # (S, M), rows add up to one
    means: Tensor  # (S, M, K)
    factors: Tensor  # (S, M, K, K): a covariance is factor times its transpose

    def __init__(
        self,
        shape: Shape,
        num_classes: int,
        dimensions: int,
        components: int,
        view: str = "pixels",
        warp: float = 0.0,
        grains: int = 0,
    ) -> None:
        super().__init__()
        self.view = view_as(view, (shape[0], shape[1], shape[2]))
        self.warp = warp
        each = (num_classes, components)
        self.register_buffer("basis", torch.zeros(self.view.size, dimensions))
        # Releases from before there was grain hold none.
        grain = torch.zeros(self.view.size, grains)
        self.register_buffer("grain", grain, persistent=grains > 0)
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
        points = self.points(labels, rng)
        images = self.images(points, self.beside(len(points), rng))
        return warped(images, self.warp, rng) if self.warp > 0 else images

    def beside(self, count: int, rng: torch.Generator) -> Tensor:
        """(N, V): what `count` images have beside the subspace."""
        return normals(rng, count, self.grain.shape[1], like=self.grain) @ self.grain.T

    def cut_off(self, points: Tensor, beside: Tensor | float = 0.0) -> Tensor:
        """(N, V): the vectors at these points of the subspace, with pixels from 0 to 1."""
        return self.view.cut_off(points @ self.basis.T + beside)

    def images(self, points: Tensor, beside: Tensor | float = 0.0) -> Tensor:
        """What lies at these points of the subspace."""
        return self.view.images(self.cut_off(points, beside))
