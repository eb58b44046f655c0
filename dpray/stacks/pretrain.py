"""Stage 1 of DP2-VAE, one block: many encoders trained at once, each beside its own decoder.

The parameters of a block are stacked, the losses go through `torch.func.vmap`, and one fused
Adam step moves them all. Private side: an encoder is a function of its own subset and of public
settings; nothing is noised here, so encoders are never released. The decoders are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

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
    model = settings.recipe.build(settings.seed)
    start = {name: value.to(settings.device) for name, value in _start(job).items()}
    leaves = {name: turned(value).requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=settings.lr, fused=True)

    def member_loss(
        weights: Stack, pixels: Tensor, labels: Tensor, mask: Tensor, noise: Tensor
    ) -> Tensor:
        losses = functional_call(model, weights, (pixels, labels, noise, settings.kl_weight))
        return (losses * mask).sum() / mask.sum().clamp_min(1)

    losses = _one_by_one(member_loss) if settings.one_by_one else vmap(member_loss)
    for pixels, labels, mask, noise in _batches(job):
        weights = {name: turned_back(leaf) for name, leaf in leaves.items()}
        # A sum over members: each one's gradient is that of its own loss.
        total = losses(weights, pixels, labels, mask, noise).sum()
        raw_grads = dict(
            zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True)
        )
        for part in (_ENCODER, _DECODER):
            own = {name: grad for name, grad in raw_grads.items() if name.startswith(part)}
            set_gradients(leaves, clip_members(own, settings.clip_norm, in_place=True))
        optimizer.step()
    return {
        name.removeprefix(_ENCODER): turned_back(leaf.detach()).contiguous().cpu()
        for name, leaf in leaves.items()
        if name.startswith(_ENCODER)
    }


def _one_by_one(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`vmap(fn)` by a loop, for operations that take longer side by side than in turn."""

    def losses(weights: Stack, *rest: Tensor) -> Tensor:
        members = zip(*(value.unbind() for value in weights.values()), strict=True)
        return torch.stack(
            [
                fn(dict(zip(weights, member, strict=True)), *(value[i] for value in rest))
                for i, member in enumerate(members)
            ]
        )

    return losses


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
    longest = max(draw.shape[1] for draw in draws)
    out = draws[0].new_zeros(draws[0].shape[0], len(draws), longest, *draws[0].shape[2:])
    for place, draw in enumerate(draws):
        out[:, place, : draw.shape[1]] = draw
    return out
