"""The check before the first private record is read: can this model be given the guarantee?

It runs the method's own loss on RANDOM rows and refuses, naming the layer and the cure, whatever
would break per-example clipping or carry private values around the noise: batch statistics,
buffers, examples that look at each other, a backend that computes something else. The model, its
gradients, its flags and the random state are as before when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from dpray.errors import NotPrivate
from dpray.privacy.gradients import (
    _clipped_sum,
    clip_factors,
    queried_parameters,
    selected_backend,
)

Losses = Callable[[Tensor], Tensor]

_TOLERANCE = 1e-5  # of the larger norm: what batching may change in float32


def preflight(
    model: nn.Module,
    random_losses: Losses,
    num_rows: int = 4,
    parameters: Sequence[nn.Parameter] | None = None,
    *,
    backend: str = "auto",
    allowed_buffers: Collection[str] = (),
) -> str:
    """Refuses a model that cannot be trained privately; returns the backend that will be used.

    `random_losses` maps row numbers into a small random dataset of `num_rows` rows, never
    private, to one loss per row; what it draws must be fixed per row. `allowed_buffers` are
    dotted names of buffers that are public and constant, such as fixed filters.

    Guarantee: on these rows the gradient of an example does not depend on the others, and the
    backend's clipped sum is the sum of gradients clipped one by one.
    """
    refuse_layers(model, allowed_buffers)
    params = queried_parameters(model, parameters)
    rows = torch.arange(num_rows)
    with _untouched(model):
        _refuse_random_losses(random_losses, rows)
        raw_alone = _one_by_one(random_losses, rows, params)
        _refuse_changed_buffers(model, random_losses, rows)
        _refuse_mixing(model, random_losses, rows, params, raw_alone)
        _refuse_wrong_sum(model, random_losses, rows, params, raw_alone, backend)
    return selected_backend(model, params, backend)


def refuse_layers(model: nn.Module, allowed_buffers: Collection[str] = ()) -> None:
    """Refuses what can be told from the layers alone, trainable or not, in any mode."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise NotPrivate(
                f"{_spelled(name, module)} mixes the examples of a batch and keeps their "
                "statistics; use GroupNorm"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise NotPrivate(
                f"{_spelled(name, module)} keeps running statistics of private examples; "
                "use GroupNorm, or track_running_stats=False"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise NotPrivate(
                f"{_spelled(name, module)} rescales the rows that private examples look up; "
                "use max_norm=None"
            )
        for buffer, _ in module.named_buffers(name, recurse=False):
            if buffer not in allowed_buffers:
                raise NotPrivate(
                    f"{_spelled(name, module)} has the buffer {buffer!r}, which could carry "
                    "private values around the noise; remove it, or list it in allowed_buffers "
                    "if it is public and constant"
                )


def _refuse_random_losses(losses: Losses, rows: Tensor) -> None:
    torch.manual_seed(0)
    first = losses(rows).detach()
    torch.manual_seed(1)
    second = losses(rows).detach()
    if first.shape != rows.shape:
        raise NotPrivate(
            f"the loss has shape {tuple(first.shape)} for {len(rows)} examples; "
            "return one loss per example, without a reduction"
        )
    if _differ(first, second):
        raise NotPrivate(
            "the loss draws random numbers in every call, so examples cannot be compared with "
            "themselves; fix the draws per row for the check"
        )


def _one_by_one(losses: Losses, rows: Tensor, params: Sequence[nn.Parameter]) -> list[Tensor]:
    try:
        return [_flat_gradient(losses(row), params) for row in rows.split(1)]
    except (RuntimeError, ValueError) as error:
        raise NotPrivate(
            f"the loss of one example alone cannot be computed ({error}); "
            "compute every example from itself"
        ) from error


def _refuse_changed_buffers(model: nn.Module, losses: Losses, rows: Tensor) -> None:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    losses(rows)
    for name, buffer in model.named_buffers():
        if not torch.equal(before[name], buffer):
            owner = name.rpartition(".")[0]
            raise NotPrivate(
                f"{_spelled(owner, model.get_submodule(owner))} changes the buffer {name!r} in "
                "its forward pass; make it constant"
            )


def _refuse_mixing(
    model: nn.Module,
    losses: Losses,
    rows: Tensor,
    params: Sequence[nn.Parameter],
    raw_alone: list[Tensor],
) -> None:
    """The gradient of an example within a batch must be the one it has alone."""
    together = losses(rows)
    for i, alone in enumerate(raw_alone):
        within = _flat_gradient(together[i], params)
        if _differ(within, alone):
            culprit = _first_to_differ(model, losses, rows, i) or "the loss function"
            raise NotPrivate(
                f"{culprit} mixes the examples of a batch: an example has another gradient in "
                "company than alone; compute every example from itself"
            )


def _refuse_wrong_sum(
    model: nn.Module,
    losses: Losses,
    rows: Tensor,
    params: Sequence[nn.Parameter],
    raw_alone: list[Tensor],
    backend: str,
) -> None:
    """The backend's clipped sum must be the sum of gradients clipped one by one."""
    raw = torch.stack(raw_alone)
    norms = torch.linalg.vector_norm(raw, dim=1, dtype=torch.float64)
    clip_norm = float(norms.median()) or 1.0  # some rows are clipped and some are not
    expected = clip_factors(norms, clip_norm).to(raw.dtype) @ raw
    got = _clipped_sum(model, losses, rows, params, clip_norm, len(rows), backend).to(expected)
    if not _differ(got, expected, at_least=clip_norm):
        return
    used = selected_backend(model, params, backend)
    sizes = [p.numel() for p in params]
    errors = [
        float((a - b).norm()) for a, b in zip(got.split(sizes), expected.split(sizes), strict=True)
    ]
    worst = params[errors.index(max(errors))]
    name, owner = next(
        (name, m)
        for name, m in model.named_modules()
        if any(p is worst for p in m.parameters(recurse=False))
    )
    cure = "use backend='opacus', or " if used == "bookkeeping" else ""
    raise NotPrivate(
        f"backend {used!r} does not find the gradients per example of {_spelled(name, owner)}; "
        f"{cure}use its parameters in its own forward pass alone"
    )


def _first_to_differ(model: nn.Module, losses: Losses, rows: Tensor, i: int) -> str | None:
    """The first module, in order of completion, whose output for row `i` depends on company."""
    with _seen(model) as within:
        losses(rows)
    with _seen(model) as alone:
        losses(rows[i : i + 1])

    def changed(many: Tensor, one: Tensor) -> bool:
        comparable = len(many) == len(rows) and len(one) == 1 and many[i].shape == one[0].shape
        return comparable and _differ(many[i].double(), one[0].double())

    for (name, inputs, out), (other, other_inputs, other_out) in zip(within, alone, strict=False):
        if name != other or not changed(out, other_out):
            continue
        if any(map(changed, inputs, other_inputs)):
            name = name.rpartition(".")[0]  # what it was given is mixed already: by its parent
        return _spelled(name, model.get_submodule(name))
    return None


@contextmanager
def _seen(model: nn.Module) -> Iterator[list[tuple[str, list[Tensor], Tensor]]]:
    """Copies of the tensors the modules take and return while it is open, by module name."""
    seen: list[tuple[str, list[Tensor], Tensor]] = []

    def tensors(values: tuple[Any, ...]) -> list[Tensor]:
        return [v.detach().clone() for v in values if isinstance(v, Tensor) and v.ndim > 0]

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, args, out: seen.extend(
            (name, tensors(args), copy) for copy in tensors((out,))
        )

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Dropout is off inside; buffers, training flags and random states are restored after."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    dropouts = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.training]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        try:
            for module in dropouts:
                module.training = False
            yield
        finally:
            for module in dropouts:
                module.training = True
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def _flat_gradient(loss: Tensor, params: Sequence[nn.Parameter]) -> Tensor:
    raw = torch.autograd.grad(loss.sum(), params, allow_unused=True, retain_graph=True)
    pieces = [torch.zeros_like(p) if r is None else r for p, r in zip(params, raw, strict=True)]
    return torch.cat([piece.detach().flatten() for piece in pieces])


def _differ(first: Tensor, second: Tensor, at_least: float = 0.0) -> bool:
    """Whether two vectors are further apart than rounding takes them."""
    size = max(float(first.norm()), float(second.norm()), at_least)
    return not float((first - second).norm()) <= _TOLERANCE * size


def _spelled(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    return f"layer {name!r} ({kind})" if name else f"the model itself ({kind})"
