"""Many networks of one form as one dictionary of tensors with a first dimension of n.

What `torch.func.vmap` and one fused optimiser step take. Private side: weights and gradients
here are functions of private records, and clipping alone makes nothing private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Stack = dict[str, Tensor]  # names as in `named_parameters`, each (n, *shape of the parameter)


def repeated(module: nn.Module, count: int) -> Stack:
    """`count` members that all start as `module` is."""
    return {
        name: value.detach().expand(count, *value.shape).clone()
        for name, value in module.named_parameters()
    }


def stacked(modules: Sequence[nn.Module]) -> Stack:
    """One member for each module."""
    named = [dict(module.named_parameters()) for module in modules]
    return {
        name: torch.stack([parameters[name].detach() for parameters in named]) for name in named[0]
    }


def turned(weights: Tensor) -> Tensor:
    """A stack of matrices in the order in which its gradient comes out of the backward pass.

    For leaves of a training: a gradient laid out otherwise than its leaf is copied at every step,
    once to be clipped and once for Adam, and that takes a third of all the time.
    """
    return weights.transpose(1, 2).contiguous() if weights.dim() == 3 else weights


def turned_back(leaf: Tensor) -> Tensor:
    """What `turned` was given, as a view of what it gave."""
    return leaf.transpose(1, 2) if leaf.dim() == 3 else leaf


def set_gradients(leaves: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> None:
    """Gives leaves their gradients, laid out as `torch.optim.Adam(fused=True)` needs them.

    On a processor that reads both in the order of their memory, and where these differ it takes
    wrong steps without a word. Nothing is copied where they agree.
    """
    for name, grad in grads.items():
        assert leaves[name].is_contiguous()
        leaves[name].grad = grad.contiguous()


@torch.no_grad()
def clip_members(grads: Mapping[str, Tensor], bound: float, *, in_place: bool = False) -> Stack:
    """Each member's gradient scaled down to a norm of `bound`, taken over all its tensors.

    `in_place` writes over `grads`, no two of which may share memory: that spares the time to find
    room for as many again.

    Guarantee: no member's joint norm is above bound * (1 + 1e-5), and one that is not finite
    becomes zeros. A member's result depends on its own gradient alone.
    """
    norms = torch.stack(
        [torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads.values()]
    )
    norms = torch.linalg.vector_norm(norms, dim=0)
    finite = norms.isfinite()
    factors = (bound / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)
    scale = Tensor.mul_ if in_place else Tensor.mul
    clipped = {name: scale(grad, _beside(factors, grad)) for name, grad in grads.items()}
    if not finite.all():
        # Not by a factor of zero: zero times infinity is not zero.
        for grad in clipped.values():
            grad[~finite] = 0.0
    return clipped


def _beside(factors: Tensor, grad: Tensor) -> Tensor:
    return factors.reshape(-1, *(1,) * (grad.dim() - 1))
