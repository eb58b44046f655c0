"""What preflight refuses, in which words, and that it leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.errors import NotPrivate
from dpray.privacy.preflight import preflight


def never(rows: Tensor) -> Tensor:
    raise AssertionError("the loss was computed")


def losses_of(model: nn.Module, *shape: int) -> Callable[[Tensor], Tensor]:
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    return lambda rows: model(x[rows]).flatten(1).square().mean(1)


def conv_net(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), *extra, nn.Flatten(), nn.LazyLinear(3))


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Counting(nn.Module):
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().sum()
        return x


class Filtered(nn.Module):
    filter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", torch.ones(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.filter


class MixesBeforeItsChild(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flip(0))


class BorrowsItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.linear(torch.tanh(self.first(x)), self.first.weight))


FROZEN = nn.BatchNorm2d(4).requires_grad_(False).eval()
STATISTICS = {
    "BatchNorm2d": nn.BatchNorm2d(4),
    "BatchNorm2d without affine": nn.BatchNorm2d(4, affine=False),
    "BatchNorm2d without statistics": nn.BatchNorm2d(4, track_running_stats=False),
    "BatchNorm2d frozen": FROZEN,
    "SyncBatchNorm": nn.SyncBatchNorm(4),
    "LazyBatchNorm2d": nn.LazyBatchNorm2d(),
    "InstanceNorm2d with statistics": nn.InstanceNorm2d(4, track_running_stats=True),
}


@pytest.mark.parametrize("kind", STATISTICS)
def test_batch_statistics_are_refused_by_layer_with_the_cure(kind: str) -> None:
    model = conv_net(STATISTICS[kind])
    with pytest.raises(NotPrivate, match=rf"layer '1' \({kind.split()[0]}\).*use GroupNorm"):
        preflight(model, never)


def test_a_table_that_rescales_its_rows_is_refused() -> None:
    with pytest.raises(NotPrivate, match=r"layer '0' \(Embedding\).*use max_norm=None"):
        preflight(nn.Sequential(nn.Embedding(5, 3, max_norm=1.0)), never)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            nn.Sequential(nn.Linear(5, 5), Centred(), nn.Linear(5, 3)),
            r"layer '1' \(Centred\) mixes",
        ),
        (MixesBeforeItsChild(), r"the model itself \(MixesBeforeItsChild\) mixes"),
        (nn.Sequential(MixesBeforeItsChild()), r"layer '0' \(MixesBeforeItsChild\) mixes"),
        (BorrowsItsWeight(), r"'bookkeeping'.*layer 'first' \(Linear\); use backend='opacus'"),
    ],
)
def test_what_breaks_the_gradient_of_an_example_is_refused_by_layer(
    model: nn.Module, words: str
) -> None:
    with pytest.raises(NotPrivate, match=words):
        preflight(model, losses_of(model, 5))


def test_a_loss_that_mixes_examples_or_is_reduced_or_random_is_refused() -> None:
    model = nn.Linear(5, 3)
    good = losses_of(model, 5)
    with pytest.raises(NotPrivate, match="the loss function mixes the examples"):
        preflight(model, lambda rows: good(rows) * good(rows).sum())
    with pytest.raises(NotPrivate, match="one loss per example"):
        preflight(model, lambda rows: good(rows).mean())
    with pytest.raises(NotPrivate, match="draws random numbers"):
        preflight(model, lambda rows: good(rows) * torch.rand(len(rows)))


def test_a_loss_that_needs_company_is_refused() -> None:
    model = nn.Linear(5, 3)
    good = losses_of(model, 5)
    with pytest.raises(NotPrivate, match="one example alone cannot be computed"):
        preflight(
            model,
            lambda rows: (
                good(rows)
                + F.batch_norm(model.weight[: len(rows)], None, None, training=True).sum()
            ),
        )


def test_a_buffer_is_refused_unless_it_is_listed() -> None:
    model = conv_net(Filtered())
    losses = losses_of(model, 2, 6, 6)
    losses(torch.arange(4))
    with pytest.raises(NotPrivate, match=r"layer '1' \(Filtered\) has the buffer '1.filter'"):
        preflight(model, losses)
    assert preflight(model, losses, allowed_buffers=["1.filter"]) == "bookkeeping"


def test_a_listed_buffer_that_changes_is_refused_and_restored() -> None:
    counting = Counting()
    model = nn.Sequential(nn.Linear(5, 5), counting)
    with pytest.raises(NotPrivate, match=r"layer '1' \(Counting\) changes the buffer '1.total'"):
        preflight(model, losses_of(model, 5), allowed_buffers=["1.total"])
    assert float(counting.total) == 0.0


GOOD = {
    "bookkeeping": [nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Dropout(0.5)],
    "opacus": [nn.ConvTranspose2d(4, 4, 3), nn.LayerNorm([6, 6]), nn.InstanceNorm2d(4)],
}


@pytest.mark.parametrize("backend", GOOD)
def test_a_good_model_passes_and_is_left_as_it_was(backend: str) -> None:
    model = conv_net(*GOOD[backend])
    losses = losses_of(model, 2, 6, 6)
    losses(torch.arange(4))
    weights = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[1].eval()
    flags, random_state = [m.training for m in model.modules()], torch.get_rng_state()
    assert preflight(model, losses) == backend
    assert flags == [m.training for m in model.modules()]
    assert torch.equal(random_state, torch.get_rng_state())
    for p, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(p, weight)
        assert p.grad is not None
        assert torch.equal(p.grad, torch.ones_like(p))
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_a_deep_network_of_normalised_convolutions_passes() -> None:
    torch.manual_seed(0)
    block = [(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU()) for _ in range(12)]
    layers = [layer for three in block for layer in three]
    model = nn.Sequential(nn.Conv2d(2, 8, 3), *layers, nn.Flatten(), nn.LazyLinear(3))
    losses = losses_of(model, 2, 12, 12)
    losses(torch.arange(4))
    assert preflight(model, losses) == "bookkeeping"
    assert preflight(model, losses, parameters=list(model[1].parameters())) == "bookkeeping"
