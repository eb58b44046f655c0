"""One step of the images towards a noisy gradient, and the training of the network on them.

Both are shared between ranks by synthetic images: a rank differentiates its own and the sums, all
of them public, are added. The distance is a function of the summed gradient, so the chain rule
needs no more than that sum to give every rank the gradient of its own pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.matching.distance import row_distance
from dpray.matching.images import LearntImages
from dpray.world import World

TRAINING_BATCH = 256


def set_matching_gradient(
    network: nn.Module,
    weights: Sequence[nn.Parameter],
    target: Sequence[Tensor],
    images: LearntImages,
    rows: Tensor,
    world: World,
) -> None:
    """Sets `p.grad` of what `images` learns to that of the distance between the gradients.

    `rows` are the images that are matched, on all ranks the same; `target` is noisy already.
    """
    own = rows[world.rank :: world.size]
    learnt = images(own)
    pixels = learnt.detach().requires_grad_()
    losses = F.cross_entropy(network(pixels), images.labels[own], reduction="sum") / len(rows)
    pieces = torch.autograd.grad(losses, weights, create_graph=True)
    own_gradient = torch.cat([piece.flatten() for piece in pieces])

    gradient = world.sum(own_gradient.detach().clone()).requires_grad_()
    parts = gradient.split([weight.numel() for weight in weights])
    shaped = [part.view(w.shape) for part, w in zip(parts, weights, strict=True)]
    (direction,) = torch.autograd.grad(row_distance(target, shaped), gradient)

    (pixel_gradient,) = torch.autograd.grad(own_gradient, pixels, direction)
    learning = list(images.parameters())
    for p, found in zip(
        learning, torch.autograd.grad(learnt, learning, pixel_gradient), strict=True
    ):
        p.grad = world.sum(found.contiguous())


def train_on_images(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    lr: float,
    rng: torch.Generator,
    world: World,
) -> None:
    """Plain gradient descent on synthetic images, all ranks together."""
    parameters = list(network.parameters())
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=rng).split(TRAINING_BATCH):
            own = batch[world.rank :: world.size]
            loss = F.cross_entropy(network(images[own]), labels[own], reduction="sum") / len(batch)
            pieces = torch.autograd.grad(loss, parameters)
            gradient = world.sum(torch.cat([piece.flatten() for piece in pieces]))
            with torch.no_grad():
                for p, piece in zip(
                    parameters, gradient.split([p.numel() for p in parameters]), strict=True
                ):
                    p.sub_(piece.view(p.shape), alpha=lr)
