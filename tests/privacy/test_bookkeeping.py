"""Book-keeping against Opacus and against autograd, one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.errors import NotPrivate
from dpray.privacy.gradients import _clipped_sum, clip_factors, queried_parameters

Model = Callable[[], nn.Module]


class TwoTokens(nn.Module):
    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, padding_idx=padding_idx)
        self.head = nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens))).flatten(1)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return (x + self.norm(self.second(x))).mean((2, 3))


def images(model: Model) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (model(), torch.randn(6, 2, 7, 6))


def vectors(model: Model, *shape: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (model(), torch.randn(6, *shape))


def tokens(model: Model) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (model(), torch.randint(0, 5, (6, 4)))


CASES = {
    "linear": vectors(lambda: nn.Linear(5, 3), 5),
    "linear without bias": vectors(lambda: nn.Linear(5, 3, bias=False), 5),
    "linear on sequences, direct": vectors(lambda: nn.Linear(3, 2), 9, 3),
    "linear on sequences, ghost": vectors(lambda: nn.Linear(40, 30), 2, 40),
    "linear on grids": vectors(lambda: nn.Linear(3, 2), 2, 4, 3),
    "mlp": vectors(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), 5),
    "conv": images(lambda: nn.Conv2d(2, 3, 3)),
    "conv with padding": images(lambda: nn.Conv2d(2, 3, 3, padding=(1, 2))),
    "conv without bias": images(lambda: nn.Conv2d(2, 3, 3, padding=1, bias=False)),
    "conv with stride": images(lambda: nn.Conv2d(2, 3, 3, stride=(2, 1), padding=1)),
    "conv with dilation": images(lambda: nn.Conv2d(2, 3, (3, 2), dilation=(2, 3), padding=2)),
    "conv with stride and dilation": images(
        lambda: nn.Conv2d(2, 3, 2, stride=3, dilation=2, padding=1)
    ),
    "conv of even kernel, same size": images(lambda: nn.Conv2d(2, 3, 4, padding="same")),
    "conv, valid": images(lambda: nn.Conv2d(2, 3, 3, padding="valid")),
    "conv in groups": images(lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2)),
    "conv in groups with stride": images(lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2)),
    "conv of one pixel": images(lambda: nn.Conv2d(2, 3, (7, 6))),
    "conv, ghost": images(lambda: nn.Conv2d(2, 40, (6, 5))),
    "groupnorm": vectors(lambda: nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8)), 4),
    "groupnorm of images": images(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4))),
    "embedding": tokens(TwoTokens),
    "embedding with padding": tokens(lambda: TwoTokens(padding_idx=1)),
    "embedding of one token": lambda: (nn.Embedding(5, 3), torch.randint(0, 5, (6,))),
    "residual": images(Residual),
    "conv net": images(
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(5, 3)),
        )
    ),
}


def losses_of(model: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss that is not linear in the output, so that examples have different gradients."""

    def losses(rows: Tensor) -> Tensor:
        out = model(inputs[rows]).flatten(1)
        scale = 1.0 + torch.arange(out.shape[1]) / 7.0
        return (out * scale).square().sum(1) / 10.0

    return losses


def one_by_one(
    losses: Callable[[Tensor], Tensor],
    num_rows: int,
    params: list[nn.Parameter],
    clip_norm: float,
) -> Tensor:
    total = torch.zeros(sum(p.numel() for p in params))
    for row in torch.arange(num_rows).split(1):
        grads = torch.autograd.grad(losses(row).sum(), params)
        flat = torch.cat([grad.flatten() for grad in grads])
        total += flat * clip_factors(flat.norm(), clip_norm)
    return total


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clip_norm", [0.3, 1e6])
def test_bookkeeping_agrees_with_opacus_and_with_one_by_one(case: str, clip_norm: float) -> None:
    torch.manual_seed(3)
    model, inputs = CASES[case]()
    losses, params, rows = losses_of(model, inputs), queried_parameters(model), torch.arange(6)
    ours = _clipped_sum(model, losses, rows, params, clip_norm, 512, "bookkeeping")
    opacus = _clipped_sum(model, losses, rows, params, clip_norm, 512, "opacus")
    single = one_by_one(losses, 6, params, clip_norm)
    size = float(single.norm())
    assert float((ours - single).norm()) < 1e-5 * size
    if case != "embedding with padding":  # Opacus gives the padding token a gradient
        assert float((ours - opacus).norm()) < 1e-5 * size


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_padding_modes_agree_with_one_by_one(
    mode: Literal["reflect", "replicate", "circular"],
) -> None:
    model, inputs = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode), torch.randn(6, 2, 7, 6)
    losses, params = losses_of(model, inputs), list(model.parameters())
    ours = _clipped_sum(model, losses, torch.arange(6), params, 0.3, 512, "bookkeeping")
    torch.testing.assert_close(ours, one_by_one(losses, 6, params, 0.3), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("queried", [["0.weight"], ["0.bias", "2.weight"], ["1.bias", "2.bias"]])
@pytest.mark.parametrize("backend", ["bookkeeping", "opacus"])
def test_the_clip_is_joint_over_exactly_the_queried_parameters(
    queried: list[str], backend: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 2))
    params = [model.get_parameter(name) for name in queried]
    losses = losses_of(model, torch.randn(6, 2, 7, 6))
    got = _clipped_sum(model, losses, torch.arange(6), params, 0.2, 512, backend)
    torch.testing.assert_close(got, one_by_one(losses, 6, params, 0.2), rtol=1e-4, atol=1e-6)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_frozen_layers_are_skipped() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    losses, params = losses_of(model, torch.randn(6, 5)), queried_parameters(model)
    assert sum(p.numel() for p in params) == 27
    got = _clipped_sum(model, losses, torch.arange(6), params, 0.1, 512, "bookkeeping")
    torch.testing.assert_close(got, one_by_one(losses, 6, params, 0.1))


def test_an_activation_that_works_in_place_does_not_corrupt_the_captures() -> None:
    torch.manual_seed(1)
    tail = [nn.Flatten(), nn.Linear(80, 3)]
    inplace = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), *tail)
    usual = nn.Sequential(inplace[0], nn.ReLU(), *tail)
    x, rows, params = torch.randn(6, 2, 7, 6), torch.arange(6), list(usual.parameters())
    got = _clipped_sum(inplace, losses_of(inplace, x), rows, params, 0.3, 512, "bookkeeping")
    expected = one_by_one(losses_of(usual, x), 6, params, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_an_input_changed_in_place_is_refused_by_name() -> None:
    class Sloppy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            out = self.head(x)
            x.add_(1.0)
            return out

    model = Sloppy()
    losses = losses_of(model, torch.randn(6, 5))
    with pytest.raises(NotPrivate, match=r"'head' \(Linear\) is changed in place"):
        _clipped_sum(model, losses, torch.arange(6), list(model.parameters()), 1.0, 9, "auto")


def test_a_layer_used_twice_goes_to_opacus_or_is_refused() -> None:
    torch.manual_seed(2)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    losses, params = losses_of(model, torch.randn(6, 4)), list(model.parameters())
    got = _clipped_sum(model, losses, torch.arange(6), params, 0.2, 512, "auto")
    torch.testing.assert_close(got, one_by_one(losses, 6, params, 0.2), rtol=1e-4, atol=1e-6)
    with pytest.raises(NotPrivate, match="runs twice"):
        _clipped_sum(model, losses, torch.arange(6), params, 0.2, 512, "bookkeeping")


def test_a_layer_without_an_example_dimension_is_refused_by_name() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.table(torch.arange(5))

    model = Positions()
    losses = losses_of(model, torch.randn(6, 5, 3))
    with pytest.raises(NotPrivate, match=r"'table' \(Embedding\) returns 5 rows for 6 examples"):
        _clipped_sum(model, losses, torch.arange(6), list(model.parameters()), 1.0, 9, "auto")


@pytest.mark.parametrize("backend", ["bookkeeping", "opacus"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_an_example_that_is_not_finite_adds_exactly_nothing(bad: float, backend: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x, params = torch.randn(6, 2, 4, 4), list(model.parameters())
    x[2, 0, 1, 1] = bad
    good = torch.tensor([0, 1, 3, 4, 5])
    losses = losses_of(model, x)
    with_bad = _clipped_sum(model, losses, torch.arange(6), params, 0.5, 512, backend)
    without = _clipped_sum(model, losses, good, params, 0.5, 512, backend)
    torch.testing.assert_close(with_bad, without, rtol=1e-5, atol=1e-6)
    alone = _clipped_sum(model, losses, torch.tensor([2]), params, 0.5, 512, backend)
    assert torch.equal(alone, torch.zeros_like(alone))


@pytest.mark.parametrize("micro_batch", [1, 2, 5])
@pytest.mark.parametrize("backend", ["bookkeeping", "opacus"])
def test_micro_batches_give_the_sum_of_one_batch(micro_batch: int, backend: str) -> None:
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(6, 2, 7, 6)
    params, losses, rows = list(model.parameters()), losses_of(model, x), torch.arange(6)
    whole = _clipped_sum(model, losses, rows, params, 0.3, 512, backend)
    parts = _clipped_sum(model, losses, rows, params, 0.3, micro_batch, backend)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e6, 1e9])
def test_positions_that_cancel_add_no_more_than_the_clip_norm(size):
    """The true gradient is small, the rounding error of its terms is not: it counts as well."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    inputs = torch.randn(1, 1, 64).expand(1, 3, 64).contiguous()
    weights = torch.tensor([size, 1e-3, -size])[None, :, None]

    def losses(rows):
        return (model(inputs[rows]) * weights).sum((1, 2))

    total = _clipped_sum(model, losses, torch.arange(1), [model.weight], 0.5, 8, "bookkeeping")
    assert total.norm() <= 0.5 * (1 + 1e-6)
