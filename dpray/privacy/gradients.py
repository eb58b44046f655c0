"""The noisy gradient: draw, clip, sum, all-reduce, noise. Every gradient method calls this.

Private records are read between `paid.check` and the addition of noise, all on one screen in
`noisy_gradient`. Two backends take the clipped sum: book-keeping (`bookkeeping.py`, fast, four
kinds of layers) and Opacus (any layer; also the oracle the first one is tested against). Names
say the side of the noise: `raw_`, `clipped_` before, `noisy_` after.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpray.errors import BadInput, NotPrivate, unknown
from dpray.privacy.bookkeeping import LayerUsedTwice, clipped_chunk_sum, covered_layers
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients
from dpray.world import SOLO, World

BACKENDS = ("auto", "bookkeeping", "opacus")

# On a processor a chunk whose tensors stay in the cache is faster than a large one: measured.
_FIRST_CHUNK, _LEAST_CHUNK = 64, 16
_CACHED_NUMBERS = 3_200_000
# An example this far beyond the bound counts as not finite: its factor is no float32 any more.
_SMALLEST_FACTOR = 1e-30


def noisy_gradient(
    model: nn.Module,
    example_losses: Callable[[Tensor], Tensor],
    ids: Tensor,
    step: int,
    *,
    paid: PaidQuery[PoissonGradients],
    key: RunKey,
    world: World = SOLO,
    micro_batch: int = 512,
    backend: str = "auto",
    parameters: Sequence[nn.Parameter] | None = None,
) -> None:
    """Sets `p.grad` of every queried parameter to the noisy mean gradient of step `step`.

    `example_losses` maps row numbers into the local records to one loss per row, through
    `model`. `micro_batch` bounds memory and changes nothing else; every rank must call, also
    one whose share of the batch is empty.

    Guarantee: the release is (sum of per-example gradients, each of joint norm at most
    `clip_norm`, + noise of standard deviation `noise_multiplier * clip_norm`) divided by the
    public `expected_batch_size`, over the records whose ids the key picks at `sample_rate`.
    Noise enters once, after the sum over ranks, and is the same on all of them. No un-noised
    value is left in `p.grad`, also when the call fails.
    """
    paid.check(step)
    query = paid.query
    params = queried_parameters(model, parameters)
    for p in params:
        p.grad = None

    rows = key.poisson_rows(f"{query.name}/batch", step, ids, query.sample_rate)
    clipped_sum = _clipped_sum(
        model, example_losses, rows, params, query.clip_norm, micro_batch, backend
    )
    clipped_sum = world.sum(clipped_sum)
    if query.noise_multiplier > 0.0 and world.is_first:
        noise = key.normals(f"{query.name}/noise", step, clipped_sum.numel())
        noise = noise.to(clipped_sum.device).mul_(query.noise_multiplier * query.clip_norm)
        noisy_sum = noise.add_(clipped_sum)  # in float64
    else:
        noisy_sum = clipped_sum.double()  # the query's event says that this is not private
    # Processors may differ in the last bit of a logarithm: all ranks take rank 0's sum.
    noisy_sum = world.share(noisy_sum)
    noisy_mean = noisy_sum.div_(query.expected_batch_size)

    pieces = noisy_mean.split([p.numel() for p in params])
    for p, noisy_piece in zip(params, pieces, strict=True):
        p.grad = noisy_piece.view(p.shape).to(device=p.device, dtype=p.dtype)


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """What to multiply vectors of these norms with, in float64.

    Guarantee: factor * norm <= clip_norm * (1 + 1e-6); a norm that is not finite gets exactly 0.
    """
    norms = norms.double()
    factors = (clip_norm / norms.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return factors.where(norms.isfinite() & (factors > _SMALLEST_FACTOR), 0.0)


def clipped_public_sum(
    model: nn.Module,
    example_losses: Callable[[Tensor], Tensor],
    rows: Tensor,
    clip_norm: float,
    micro_batch: int = 512,
) -> Tensor:
    """Sum over `rows` of per-example gradients, each held to `clip_norm`, as one flat vector.

    For examples that are public, such as generated ones, and for no others: nothing is noised.
    """
    params = queried_parameters(model)
    return _clipped_sum(model, example_losses, rows, params, clip_norm, micro_batch, "auto")


def queried_parameters(
    model: nn.Module, parameters: Sequence[nn.Parameter] | None = None
) -> list[nn.Parameter]:
    """The parameters a query is about: the given ones, or all that are trainable."""
    names = {p: name for name, p in model.named_parameters()}
    if parameters is None:
        params = [p for p in names if p.requires_grad]
    else:
        params = list(dict.fromkeys(parameters))
        if not all(p in names for p in params):
            raise BadInput("a queried parameter is not part of the model; pass parameters of it")
        frozen = [names[p] for p in params if not p.requires_grad]
        if frozen:
            raise BadInput(f"parameter {frozen[0]!r} is frozen; only trainable ones are queried")
    if not params:
        raise BadInput("the model has no trainable parameter; there is no gradient to release")
    return params


def selected_backend(model: nn.Module, params: Sequence[nn.Parameter], backend: str) -> str:
    """`bookkeeping` where it covers every queried parameter, `opacus` elsewhere, or as told."""
    if backend not in BACKENDS:
        raise unknown("gradient backend", backend, BACKENDS)
    covered = covered_layers(model, params) is not None
    if backend == "bookkeeping" and not covered:
        raise BadInput(
            "backend 'bookkeeping' covers Linear, Conv2d, GroupNorm and Embedding layers whose "
            "parameters are not shared; use 'opacus' or 'auto' for this model"
        )
    if backend == "auto":
        return "bookkeeping" if covered else "opacus"
    return backend


def _clipped_sum(
    model: nn.Module,
    example_losses: Callable[[Tensor], Tensor],
    rows: Tensor,
    params: Sequence[nn.Parameter],
    clip_norm: float,
    micro_batch: int,
    backend: str,
) -> Tensor:
    """Sum over `rows` of clipped per-example gradients as one flat vector: NOT noised.

    Guarantee: each row adds a vector of norm at most `clip_norm` (to 1e-6) over all of `params`
    together, or exactly zero where its gradient is not finite. `p.grad` is never written.
    """
    if clip_norm <= 0.0 or micro_batch < 1:
        raise BadInput(f"clip_norm {clip_norm} and micro_batch {micro_batch} must be positive")
    chosen = selected_backend(model, params, backend)
    take = _bookkeeping_sum if chosen == "bookkeeping" else _opacus_sum
    try:
        return take(model, example_losses, rows, params, clip_norm, micro_batch)
    except LayerUsedTwice:
        if backend != "auto":
            raise
        return _opacus_sum(model, example_losses, rows, params, clip_norm, micro_batch)


def _bookkeeping_sum(
    model: nn.Module,
    example_losses: Callable[[Tensor], Tensor],
    rows: Tensor,
    params: Sequence[nn.Parameter],
    clip_norm: float,
    micro_batch: int,
) -> Tensor:
    layers = covered_layers(model, params)
    assert layers is not None
    total = _zeros(params)
    places: dict[Tensor, Tensor] = dict(
        zip(params, total.split([p.numel() for p in params]), strict=True)
    )
    on_processor = total.device.type == "cpu"
    start, chunk = 0, min(micro_batch, _FIRST_CHUNK) if on_processor else micro_batch
    while start < len(rows):
        part = rows[start : start + chunk]
        clipped, held = clipped_chunk_sum(
            layers,
            set(params),
            lambda part=part: example_losses(part),  # type: ignore[misc]
            len(part),
            lambda norms: clip_factors(norms, clip_norm),
        )
        for p, clipped_piece in clipped.items():
            places[p] += clipped_piece.flatten()
        start += len(part)
        if on_processor:
            chunk = min(micro_batch, max(_LEAST_CHUNK, _CACHED_NUMBERS // held))
    return total


def _opacus_sum(
    model: nn.Module,
    example_losses: Callable[[Tensor], Tensor],
    rows: Tensor,
    params: Sequence[nn.Parameter],
    clip_norm: float,
    micro_batch: int,
) -> Tensor:
    total = _zeros(params)
    if len(rows) == 0:
        return total
    places = total.split([p.numel() for p in params])
    chunk = min(micro_batch, _FIRST_CHUNK) if total.device.type == "cpu" else micro_batch
    with _opacus_hooks(model, params):
        for part in rows.split(chunk):
            losses = example_losses(part)
            # Hooks fill p.grad_sample; `grad` instead of `backward` keeps sums out of p.grad.
            sums = torch.autograd.grad(losses.sum(), params, allow_unused=True)
            raw = [_taken_grad_sample(p, s, len(part)) for p, s in zip(params, sums, strict=True)]
            norms = torch.stack(
                [
                    torch.linalg.vector_norm(r, dim=1, dtype=torch.float64).to(total.device)
                    for r in raw
                ]
            ).norm(dim=0)
            factors = clip_factors(norms, clip_norm).to(total.dtype)
            # Zero times infinity is not zero: rows that are not finite leave the sum.
            kept = norms.isfinite()
            everyone = bool(kept.all())
            for place, r in zip(places, raw, strict=True):
                r = r.to(total)
                place += factors @ r if everyone else factors[kept] @ r[kept]
    return total


def _taken_grad_sample(p: nn.Parameter, summed: Tensor | None, num_rows: int) -> Tensor:
    """The per-example gradients (rows, numel) that Opacus left on `p`, taken off it."""
    raw = getattr(p, "grad_sample", None)
    p.grad_sample = None  # type: ignore[attr-defined]
    if raw is None and summed is None:
        return torch.zeros(num_rows, p.numel(), device=p.device)  # the loss does not use it
    if raw is None or isinstance(raw, list) or len(raw) != num_rows:
        raise NotPrivate(
            f"there is no gradient per example for a parameter of shape {tuple(p.shape)}; use "
            "each parameter in its own layer's forward, once, with the example as first "
            "dimension, and detach what else its input depends on"
        )
    return raw.flatten(1)


@contextmanager
def _opacus_hooks(model: nn.Module, params: Sequence[nn.Parameter]) -> Iterator[None]:
    """Per-example gradients of `params` alone; afterwards the model is as it was before."""
    from opacus.grad_sample import GradSampleModule  # slow to import, and book-keeping is usual

    queried = set(params)
    others = [p for p in model.parameters() if p.requires_grad and p not in queried]
    owners = [m for m in model.modules() if any(p in queried for p in m.parameters(recurse=False))]
    training = [m.training for m in owners]
    for p in others:
        p.requires_grad_(False)
    for m in owners:
        m.training = True  # Opacus looks at no layer that is in eval mode
    hooked = None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            hooked = GradSampleModule(model, batch_first=True, loss_reduction="sum", strict=False)
            yield
    finally:
        if hooked is not None:
            hooked.cleanup()
        for m in model.modules():
            for left_over in ("activations", "max_batch_len"):
                m.__dict__.pop(left_over, None)
        for m, mode in zip(owners, training, strict=True):
            m.training = mode
        for p in others:
            p.requires_grad_(True)


def _zeros(params: Sequence[nn.Parameter]) -> Tensor:
    """The flat vector sums go to: float32, or float64 for a float64 model, never narrower."""
    wide = any(p.dtype == torch.float64 for p in params)
    dtype = torch.float64 if wide else torch.float32
    return torch.zeros(sum(p.numel() for p in params), dtype=dtype, device=params[0].device)
