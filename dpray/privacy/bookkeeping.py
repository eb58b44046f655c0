"""Per-example clipping from book-keeping: inputs and output gradients, one backward pass.

The gradient of a layer's weight is a product of what went in and of the gradient of what came
out. Both are caught on the way, so no parameter gradient is ever asked of autograd, norms come
first and one weighted sum comes last (Bu et al. 2023, "Differentially private optimization on
large model at small cost"). Nothing here is noised: only `gradients.py` may call it.

Shapes: B examples, L positions (pixels, tokens), K inputs and C outputs a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from dpray.errors import NotPrivate

Queried = set[nn.Parameter]
Sums = dict[Tensor, Tensor]  # by parameter
# What one layer adds for B examples: squared norms (B, float64), and the weighted sum to take
# once the factors (B) of the whole example are known.
Part = tuple[Tensor, Callable[[Tensor], Sums]]

# Writing and reading back one number of a per-example gradient costs about as much as this many
# multiply-adds: measured once, it only decides which of two equal results is computed.
_COST_OF_A_STORED_NUMBER = 25


class LayerUsedTwice(NotPrivate):
    """A layer ran more than once in a forward pass, so its inputs cannot be told apart."""


@dataclass
class _Capture:
    name: str
    layer: nn.Module
    raw_input: Tensor
    version: int
    edge: GradientEdge  # of the output as the layer returned it, whatever is done to it in place


def covered_layers(model: nn.Module, params: Sequence[nn.Parameter]) -> dict[str, nn.Module] | None:
    """The layers that own `params` by name, or None where one of them is of another kind."""
    queried, layers, owners = set(params), {}, dict.fromkeys(params, 0)
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p in queried]
        if not own:
            continue
        if type(module) not in _PARTS or getattr(module, "scale_grad_by_freq", False):
            return None
        layers[name] = module
        for p in own:
            owners[p] += 1
    return layers if all(count == 1 for count in owners.values()) else None


@contextmanager
def _capturing(layers: dict[str, nn.Module]) -> Iterator[list[_Capture]]:
    """Notes what goes in and out of `layers` while it is open; leaves no hook behind."""
    captures: list[_Capture] = []

    def note(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            if not out.requires_grad:  # run without gradients: adds nothing to them
                return
            if any(capture.layer is layer for capture in captures):
                raise LayerUsedTwice(
                    f"layer {name!r} ({type(layer).__name__}) runs twice in one forward pass, "
                    "which book-keeping cannot clip; use backend='opacus' or a layer for each use"
                )
            given = (args[0] if args else kwargs["input"]).detach()
            captures.append(_Capture(name, layer, given, given._version, get_gradient_edge(out)))

        return hook

    handles = [
        layer.register_forward_hook(note(name), with_kwargs=True) for name, layer in layers.items()
    ]
    try:
        yield captures
    finally:
        for handle in handles:
            handle.remove()


def clipped_chunk_sum(
    layers: dict[str, nn.Module],
    queried: Queried,
    losses_of: Callable[[], Tensor],
    num_rows: int,
    factors_of: Callable[[Tensor], Tensor],
) -> tuple[Sums, int]:
    """Sum of clipped per-example gradients of one chunk, and the numbers it held per example.

    Guarantee: every example enters with `factors_of(norm)` times its gradient, the norm taken
    jointly over `queried`; an example whose norm is not finite does not enter at all.
    """
    with _capturing(layers) as captures:
        losses = losses_of()
    if losses.shape != (num_rows,):
        raise NotPrivate(
            f"the loss has shape {tuple(losses.shape)} for {num_rows} examples; "
            "return one loss per example, without a reduction"
        )
    if not captures:
        return {}, 1
    raw_outputs = torch.autograd.grad(
        losses.sum(), [capture.edge for capture in captures], allow_unused=True
    )
    triples = []
    for capture, raw_grad in zip(captures, raw_outputs, strict=True):
        if raw_grad is None:
            continue
        _refuse_unusable(capture, raw_grad, num_rows)
        triples.append((capture.layer, _wide(capture.raw_input), _wide(raw_grad.detach())))
    held = sum(a.numel() + g.numel() for _, a, g in triples) // num_rows
    return _clip_and_sum(triples, queried, factors_of), max(held, 1)


def _refuse_unusable(capture: _Capture, raw_grad: Tensor, num_rows: int) -> None:
    layer = f"layer {capture.name!r} ({type(capture.layer).__name__})"
    if raw_grad.shape[0] != num_rows or capture.raw_input.shape[0] != num_rows:
        raise NotPrivate(
            f"{layer} returns {raw_grad.shape[0]} rows for {num_rows} examples; "
            "keep the example as the first dimension of every layer"
        )
    if capture.raw_input._version != capture.version:
        raise NotPrivate(
            f"the input of {layer} is changed in place after the layer has read it; "
            "replace the in-place operation"
        )


def _clip_and_sum(
    triples: list[tuple[nn.Module, Tensor, Tensor]],
    queried: Queried,
    factors_of: Callable[[Tensor], Tensor],
) -> Sums:
    if not triples:
        return {}
    parts = [_PARTS[type(layer)](layer, a, g, queried) for layer, a, g in triples]
    norms = torch.stack([squares for squares, _ in parts]).sum(0).sqrt()
    finite = norms.isfinite()
    if not bool(finite.all()):
        # Zero times infinity is not zero: such examples must leave the tensors, not be scaled.
        if not bool(finite.any()):
            return {}
        kept = [(layer, a[finite], g[finite]) for layer, a, g in triples]
        return _clip_and_sum(kept, queried, factors_of)
    factors = factors_of(norms)
    clipped: Sums = {}
    for _, weighted_sum in parts:
        clipped.update(weighted_sum(factors))
    return clipped


def _linear_part(layer: nn.Module, a: Tensor, g: Tensor, queried: Queried) -> Part:
    assert isinstance(layer, nn.Linear)
    a, g = a.reshape(len(a), -1, a.shape[-1]), g.reshape(len(g), -1, g.shape[-1])
    return _product_part(layer, a, g, queried)


def _product_part(layer: nn.Linear | nn.Conv2d, a: Tensor, g: Tensor, queried: Queried) -> Part:
    """A layer that is a matrix product at every position: a (B, L, K), g (B, L, C)."""
    weight, bias = layer.weight, _bias_part(layer, g.transpose(1, 2), queried)
    if weight not in queried:
        return bias
    positions, inputs, outputs = a.shape[1], a.shape[2], g.shape[2]
    if positions == 1:
        norms = _norms(a) * _norms(g)
        squares = norms * norms
    elif positions**2 * (inputs + outputs) < _COST_OF_A_STORED_NUMBER * inputs * outputs:
        # Differences of large numbers: in float32 a norm could come out too small to be a bound.
        a64, g64 = a.double(), g.double()
        squares = ((a64 @ a64.mT) * (g64 @ g64.mT)).sum((1, 2)).clamp_min(0.0)
        squares = squares + _rounding(a64.norm(dim=2) * g64.norm(dim=2))
    else:
        raw_examples = torch.bmm(g.mT, a).flatten(1)
        squares = _norms(raw_examples) ** 2
        return _both((squares, _stored_sum(weight, raw_examples)), bias)

    def weighted_sum(factors: Tensor) -> Sums:
        scaled = g * factors.to(g.dtype)[:, None, None]
        product = scaled.reshape(-1, outputs).T @ a.reshape(-1, inputs)
        return {weight: product.view(weight.shape)}

    return _both((squares, weighted_sum), bias)


def _conv_part(layer: nn.Module, a: Tensor, g: Tensor, queried: Queried) -> Part:
    assert isinstance(layer, nn.Conv2d)
    weight, positions = layer.weight, g.shape[2] * g.shape[3]
    inputs, outputs = weight[0].numel(), layer.out_channels
    if weight not in queried:
        return _bias_part(layer, g.flatten(2), queried)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    a = F.pad(a, _conv_pads(layer), mode=mode)
    stored = _COST_OF_A_STORED_NUMBER * inputs * outputs
    if layer.groups == 1 and positions**2 * (inputs + outputs) < stored:
        columns = F.unfold(a, layer.kernel_size, layer.dilation, stride=layer.stride)
        return _product_part(layer, columns.mT, g.flatten(2).mT, queried)

    raw_taps = _conv_taps(layer, a, g)  # (taps, B, numbers)
    squares = _norms(raw_taps.flatten(0, 1)).view(len(raw_taps), -1).square().sum(0)
    groups, (high, wide) = layer.groups, layer.kernel_size

    def weighted_sum(factors: Tensor) -> Sums:
        taps = torch.matmul(factors.to(g.dtype), raw_taps)
        taps = taps.view(high, wide, groups, outputs // groups, -1)
        return {weight: taps.permute(2, 3, 4, 0, 1).reshape(weight.shape)}

    return _both((squares, weighted_sum), _bias_part(layer, g.flatten(2), queried))


def _conv_taps(layer: nn.Conv2d, padded: Tensor, g: Tensor) -> Tensor:
    """Per-example weight gradients, a kernel tap at a time: (taps, B, C * K / taps).

    At stride 1 the input that meets a tap is the flat image read from another offset, once the
    rows of the output gradient are made as long as the rows of the image: nothing is unfolded.
    """
    batch, groups, (down, across) = len(g), layer.groups, layer.stride
    (high, wide), (rows, columns) = g.shape[2:], layer.kernel_size
    flat = layer.stride == (1, 1)
    width = padded.shape[3]
    if flat:
        g = F.pad(g, (0, width - wide))
        # One more row, for the last taps read past the end (and meet zeros in `g`).
        image = F.pad(padded, (0, 0, 0, 1)).reshape(
            batch * groups, -1, (len(padded[0, 0]) + 1) * width
        )
    g = g.reshape(batch * groups, layer.out_channels // groups, -1)
    per_group = layer.in_channels // groups
    taps = g.new_empty(rows * columns, batch * groups, g.shape[1], per_group)
    for tap in range(rows * columns):
        top, left = tap // columns * layer.dilation[0], tap % columns * layer.dilation[1]
        if flat:
            start = top * width + left
            met = image[:, :, start : start + g.shape[2]]
        else:
            met = padded[:, :, top::down, left::across][:, :, :high, :wide]
            met = met.reshape(batch * groups, per_group, -1)
        torch.bmm(g, met.mT, out=taps[tap])
    return taps.view(rows * columns, batch, -1)


def _conv_pads(layer: nn.Conv2d) -> tuple[int, int, int, int]:
    """Left, right, top, bottom."""
    if not isinstance(layer.padding, str):
        down, across = layer.padding
        return (across, across, down, down)
    if layer.padding == "valid":
        return (0, 0, 0, 0)
    down, across = (d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return (across // 2, across - across // 2, down // 2, down - down // 2)


def _groupnorm_part(layer: nn.Module, a: Tensor, g: Tensor, queried: Queried) -> Part:
    assert isinstance(layer, nn.GroupNorm)
    part = _bias_part(layer, g.reshape(*g.shape[:2], -1), queried)
    if layer.weight not in queried:
        return part
    product = g * F.group_norm(a, layer.num_groups, eps=layer.eps)
    raw_examples = product.reshape(*g.shape[:2], -1).sum(2)
    stored = _stored_sum(layer.weight, raw_examples)
    return _both((_norms(raw_examples) ** 2, stored), part)


def _embedding_part(layer: nn.Module, a: Tensor, g: Tensor, queried: Queried) -> Part:
    assert isinstance(layer, nn.Embedding)
    weight, tokens = layer.weight, a.reshape(len(a), -1)
    g = g.reshape(*tokens.shape, -1)
    if layer.padding_idx is not None:
        g = g.masked_fill((tokens == layer.padding_idx)[..., None], 0.0)
    if tokens.shape[1] == 1:
        squares = _norms(g) ** 2
    else:
        same, g64 = tokens[:, :, None] == tokens[:, None, :], g.double()
        # Masked, not multiplied: only pairs that share a row of the table belong to the norm.
        squares = (g64 @ g64.mT).masked_fill(~same, 0.0).sum((1, 2)).clamp_min(0.0)
        squares = squares + _rounding(g64.norm(dim=2))

    def weighted_sum(factors: Tensor) -> Sums:
        scaled = (g * factors.to(g.dtype)[:, None, None]).flatten(0, 1)
        return {weight: g.new_zeros(weight.shape).index_add_(0, tokens.flatten(), scaled)}

    return squares, weighted_sum


def _rounding(sizes: Tensor) -> Tensor:
    """What float32 may add to the square of a norm: `sizes` (B, L) of the terms of a sum.

    Guarantee: terms that cancel leave a small norm and a rounding error of up to 6e-8 of their
    sizes; with this added, the norm bounds what really enters the sum, error and all.
    """
    return (2e-6 * sizes.sum(1)).square()


def _bias_part(layer: nn.Module, g: Tensor, queried: Queried) -> Part:
    """A number added to all positions of a channel: g (B, C, L)."""
    bias = layer.bias
    if not isinstance(bias, nn.Parameter) or bias not in queried:
        return g.new_zeros(len(g), dtype=torch.float64), lambda factors: {}
    raw_examples = g.sum(2)
    return _norms(raw_examples) ** 2, _stored_sum(bias, raw_examples)


def _stored_sum(param: Tensor, raw_examples: Tensor) -> Callable[[Tensor], Sums]:
    return lambda factors: {
        param: (factors.to(raw_examples.dtype) @ raw_examples).view(param.shape)
    }


def _both(first: Part, second: Part) -> Part:
    return first[0] + second[0], lambda factors: first[1](factors) | second[1](factors)


def _norms(rows: Tensor) -> Tensor:
    """Norm of every row in float64, where squares of float32 numbers cannot vanish or overflow."""
    return torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64)


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


_PARTS: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor, Queried], Part]] = {
    nn.Linear: _linear_part,
    nn.Conv2d: _conv_part,
    nn.GroupNorm: _groupnorm_part,
    nn.Embedding: _embedding_part,
}
