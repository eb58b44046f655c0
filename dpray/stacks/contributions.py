"""What each drawn subset says of the decoder: its mean gradient, taken with its own encoder.

All of it is on the private side; `privacy.subset_sums` clips one row a subset and adds the noise.
Shapes: n subsets of a chunk, P records of the largest of them, d parameters of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dpray.models.autoencoders import VariationalAutoencoder
from dpray.stacks.stack import Stack, set_gradients, turned, turned_back
from dpray.stacks.subsets import SubsetBatch

Weights = Mapping[str, Tensor]
# The mean loss of a subset: of its own network, of what is public (a decoder, or generated images),
# and of pixels, labels, mask and noise of its records.
SubsetObjective = Callable[[Weights, Weights, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """The mean loss of a subset as a function of its encoder, a decoder and its records."""

    model: VariationalAutoencoder
    kl_weight: float

    def __call__(
        self,
        encoder: Weights,
        decoder: Weights,
        pixels: Tensor,
        labels: Tensor,
        mask: Tensor,
        noise: Tensor,
    ) -> Tensor:
        weights = {f"encoder.{name}": value for name, value in encoder.items()}
        weights |= {f"decoder.{name}": value for name, value in decoder.items()}
        losses: Tensor = functional_call(
            self.model, weights, (pixels, labels, noise, self.kl_weight)
        )
        return (losses * mask).sum() / mask.sum().clamp_min(1)


def decoder_gradients(
    objective: Objective, encoders: Weights, decoder: Weights, batch: SubsetBatch, noise: Tensor
) -> Tensor:
    """(n, d): for every subset the gradient of its mean loss. NOT clipped and NOT noised."""
    each = vmap(grad(objective, argnums=1), in_dims=(0, None, 0, 0, 0, 0))
    raw = each(encoders, decoder, batch.pixels, batch.labels, batch.mask, noise)
    return torch.cat([raw[name].flatten(1) for name in decoder], 1)


def adapted(
    objective: SubsetObjective,
    encoders: Weights,
    decoder: Weights,
    batch: SubsetBatch,
    noises: Callable[[int], Tensor],
    *,
    steps: int,
    lr: float,
) -> Stack:
    """The encoders after `steps` of Adam on their own subsets, against a decoder that stays.

    Or any networks of subsets, against whatever is public that their objective takes.
    """
    leaves = {name: turned(value).clone().requires_grad_() for name, value in encoders.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=lr, fused=True)
    losses = vmap(objective, in_dims=(0, None, 0, 0, 0, 0))
    for step in range(steps):
        members = {name: turned_back(leaf) for name, leaf in leaves.items()}
        # A sum over members: each one's gradient is that of its own loss.
        total = losses(members, decoder, batch.pixels, batch.labels, batch.mask, noises(step)).sum()
        raw_grads = torch.autograd.grad(total, list(leaves.values()))
        set_gradients(leaves, dict(zip(leaves, raw_grads, strict=True)))
        optimizer.step()
    return {name: turned_back(leaf.detach()) for name, leaf in leaves.items()}
