"""Stage 1 of DP2-VAE, one block: many encoders trained at once, each beside its own decoder.

The parameters of a block are stacked, the networks go through `torch.func.vmap`, and one fused
Adam step moves them all. Private side: an encoder is a function of its own subset and of public
settings; nothing is noised here, so encoders are never released. The decoders are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dpray.models.autoencoders import VariationalAutoencoder
from dpray.stacks.draws import MemberDraws, member_seed
from dpray.stacks.recipes import EncoderSettings
from dpray.stacks.stack import (
    Stack,
    clip_members,
    repeated,
    set_gradients,
    stacked,
    turned,
    turned_back,
)
from dpray.stacks.subsets import SubsetBatch

_ENCODER, _DECODER = "encoder.", "decoder."
_STEPS_A_DRAW = 16  # one call of a generator is for so many steps of a member


@dataclass(frozen=True, repr=False)
class EncoderJob:
    """The encoders of one block and their records: all that a worker gets to see."""

    numbers: tuple[int, ...]
    batch: SubsetBatch
    settings: EncoderSettings


def pretrain_block(job: EncoderJob, shared: Any = None) -> Stack:
    """The encoders of a block, stacked in the order of its numbers, on the CPU.

    Guarantee: member i depends on the records of subset `job.numbers[i]` and on the settings,
    and only within rounding on which block it is in.
    """
    settings = job.settings
    pair = _Parts(settings.recipe.build(settings.seed))
    start = {name: value.to(settings.device) for name, value in _start(job).items()}
    leaves = {name: turned(value).requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=settings.lr, fused=True)

    parts = _one_by_one(pair) if settings.one_by_one else vmap(partial(functional_call, pair))
    for pixels, labels, mask, noise in _batches(job):
        weights = {f"pair.{name}": turned_back(leaf) for name, leaf in leaves.items()}
        logits, divergence = parts(weights, (pixels, labels, noise))
        # A member's loss is the mean over its records: padding counts for nothing. Nobody looks
        # at the loss itself, so its derivatives are taken by hand and it is not.
        weight = mask / mask.sum(1, keepdim=True).clamp_min(1)
        by_logits = logits.detach().sigmoid().sub_(pixels.flatten(2)).mul_(weight[..., None])
        raw_grads = torch.autograd.grad(
            [logits, divergence], list(leaves.values()), [by_logits, settings.kl_weight * weight]
        )
        named = dict(zip(leaves, raw_grads, strict=True))
        for part in (_ENCODER, _DECODER):
            own = {name: grad for name, grad in named.items() if name.startswith(part)}
            set_gradients(leaves, clip_members(own, settings.clip_norm, in_place=True))
        optimizer.step()
    return {
        name.removeprefix(_ENCODER): turned_back(leaf.detach()).contiguous().cpu()
        for name, leaf in leaves.items()
        if name.startswith(_ENCODER)
    }


class _Parts(nn.Module):
    """A pair that gives the parts of its losses when it is called."""

    def __init__(self, pair: VariationalAutoencoder) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.pair.parts(images, labels, noise)


def _one_by_one(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """What vmap gives, by a loop: for modules that take longer side by side than in turn."""

    def parts(weights: Stack, data: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        members = zip(*(value.unbind() for value in weights.values()), strict=True)
        each = [
            functional_call(
                module,
                dict(zip(weights, member, strict=True)),
                tuple(value[i] for value in data),
            )
            for i, member in enumerate(members)
        ]
        return torch.stack([one[0] for one in each]), torch.stack([one[1] for one in each])

    return parts


def _start(job: EncoderJob) -> Stack:
    """Fresh weights: the same for all members, or for each its own."""
    recipe, seed = job.settings.recipe, job.settings.seed
    if job.settings.shared_start:
        return repeated(recipe.build(seed), len(job.numbers))
    return stacked([recipe.build(member_seed(seed, k, "start")) for k in job.numbers])


def _batches(job: EncoderJob) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Pixels, labels, mask and latent noise of every step, with a first dimension of members."""
    settings, batch = job.settings, job.batch.to(job.settings.device)
    members = [
        MemberDraws(settings.seed, number, size, settings.batch_size, settings.recipe.latent)
        for number, size in zip(job.numbers, job.batch.sizes, strict=True)
    ]
    whole = batch.mask.shape[1] <= settings.batch_size
    first = torch.arange(len(members), device=batch.mask.device)[:, None]
    for start in range(0, settings.steps, _STEPS_A_DRAW):
        steps = min(_STEPS_A_DRAW, settings.steps - start)
        noise = _side_by_side([member.noise(steps) for member in members]).to(settings.device)
        if whole:
            for step in range(steps):
                yield batch.pixels, batch.labels, batch.mask, noise[step]
            continue
        rows = _side_by_side([member.rows(steps) for member in members]).to(settings.device)
        ones = [torch.ones(steps, member.count) for member in members]
        mask = _side_by_side(ones).to(settings.device)
        for step in range(steps):
            at = (first, rows[step])
            yield batch.pixels[at], batch.labels[at], mask[step], noise[step]


def _side_by_side(draws: list[Tensor]) -> Tensor:
    """(steps, members, most records of one, ...) from draws of (steps, records, ...)."""
    longest = max(1, *(draw.shape[1] for draw in draws))  # as a batch has at least one row
    out = draws[0].new_zeros(draws[0].shape[0], len(draws), longest, *draws[0].shape[2:])
    for place, draw in enumerate(draws):
        out[:, place, : draw.shape[1]] = draw
    return out
