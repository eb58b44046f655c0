"""The noisy gradient: bound, scale, replay, and nothing un-noised left behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.gradients import _clipped_sum, clip_factors, noisy_gradient, queried_parameters
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients
from dpray.world import current_world

KEY = RunKey.insecure(7)
Losses = Callable[[Tensor], Tensor]


def never(rows: Tensor) -> Tensor:
    raise AssertionError("a record was read")


def paid(**changes: float) -> PaidQuery[PoissonGradients]:
    values = {
        "sample_rate": 1.0,
        "steps": 10,
        "clip_norm": 0.5,
        "noise_multiplier": 1.3,
        "expected_batch_size": 20.0,
    } | changes
    return PaidQuery(PoissonGradients(**values), entry=0)  # type: ignore[arg-type]


def problem(num_rows: int = 12, *, transposed: bool = False) -> tuple[nn.Sequential, Losses]:
    """A small model and its losses; with a transposed convolution it needs Opacus."""
    torch.manual_seed(0)
    first = nn.ConvTranspose2d(1, 2, 3) if transposed else nn.Conv2d(1, 2, 3, padding=2)
    model = nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    x, y = torch.randn(num_rows, 1, 4, 4), torch.randint(0, 3, (num_rows,))
    return model, lambda rows: nn.functional.cross_entropy(
        model(x[rows]), y[rows], reduction="none"
    )


def flat_grad(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@settings(max_examples=200, deadline=None)
@given(
    norm=st.floats().map(abs),
    clip_norm=st.floats(min_value=1e-6, max_value=1e6),
)
def test_a_clipped_norm_is_within_the_bound(norm: float, clip_norm: float) -> None:
    factor = float(clip_factors(torch.tensor([norm], dtype=torch.float64), clip_norm))
    assert 0.0 <= factor <= 1.0
    if math.isfinite(norm):
        assert factor * norm <= clip_norm * (1 + 1e-6)
    else:
        assert factor == 0.0


@pytest.mark.parametrize(
    "scale", [0.0, 1e-30, 1e-3, 1.0, 1e4, 1e12, 1e19, 1e30, math.nan, math.inf]
)
@pytest.mark.parametrize("backend", ["bookkeeping", "opacus"])
def test_one_example_of_any_size_stays_within_the_bound(scale: float, backend: str) -> None:
    torch.manual_seed(1)
    model, x = nn.Linear(50, 40, bias=False), torch.randn(1, 50)
    params, rows = list(model.parameters()), torch.arange(1)
    losses = lambda rows: model(x[rows] * scale).sum(1) / 3.0  # noqa: E731
    got = _clipped_sum(model, losses, rows, params, 0.5, 8, backend)
    assert float(got.double().norm()) <= 0.5 * (1 + 1e-6)
    if not math.isfinite(scale):
        assert torch.equal(got, torch.zeros_like(got))
    elif 1.0 <= scale <= 1e19:
        assert float(got.double().norm()) == pytest.approx(0.5, rel=1e-5)


def noise_of(noise_multiplier: float, step: int = 0) -> Tensor:
    """The released gradient of a model to which no record contributes anything."""
    model = nn.Linear(200_000, 1, bias=False)
    x = torch.zeros(3, 200_000)
    query = paid(noise_multiplier=noise_multiplier)
    noisy_gradient(model, lambda r: model(x[r]).sum(1), torch.arange(3), step, paid=query, key=KEY)
    return flat_grad(model).double()


def test_the_noise_has_the_promised_scale_and_shape() -> None:
    noise = noise_of(1.3) / (1.3 * 0.5 / 20.0)
    assert abs(float(noise.std()) - 1.0) < 0.008
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("wrong", [0.5, 0.98, 1.02, 2.0])
def test_a_wrong_scale_of_noise_is_noticed(wrong: float) -> None:
    noise = noise_of(1.3 * wrong) / (1.3 * 0.5 / 20.0)
    assert abs(float(noise.std()) - 1.0) > 0.008


def test_two_steps_have_independent_noise_and_a_replay_has_the_same() -> None:
    first, again, second = noise_of(1.0), noise_of(1.0), noise_of(1.0, step=1)
    assert torch.equal(first, again)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / 200_000**0.5


@pytest.mark.parametrize("transposed", [False, True])
def test_a_replayed_step_is_the_same_bit_for_bit(transposed: bool) -> None:
    model, losses = problem(transposed=transposed)
    ids, grads = torch.arange(12) * 3 + 1, []
    for step in (4, 5, 4):
        # A new process pays anew: within one, a step is answered once.
        noisy_gradient(model, losses, ids, step, paid=paid(sample_rate=0.5), key=KEY)
        grads.append(flat_grad(model))
    assert torch.equal(grads[0], grads[2])
    assert not torch.allclose(grads[0], grads[1])


def test_the_release_is_clipped_sum_plus_noise_over_the_expected_batch() -> None:
    model, losses = problem()
    ids, query = torch.arange(12), paid(sample_rate=0.5)
    noisy_gradient(model, losses, ids, 2, paid=query, key=KEY)
    rows = KEY.poisson_rows("gradients/batch", 2, ids, 0.5)
    assert 0 < len(rows) < 12
    params = list(model.parameters())
    clipped = _clipped_sum(model, losses, rows, params, 0.5, 512, "opacus")
    noise = KEY.normals("gradients/noise", 2, clipped.numel()) * 1.3 * 0.5
    expected = ((clipped.double() + noise) / 20.0).float()  # not len(rows)
    torch.testing.assert_close(flat_grad(model), expected, rtol=1e-5, atol=1e-7)


def test_without_noise_the_gradient_is_the_clipped_sum_over_the_expected_batch() -> None:
    model, losses = problem()
    query = paid(noise_multiplier=0.0, clip_norm=1e6)
    noisy_gradient(model, losses, torch.arange(12), 0, paid=query, key=KEY)
    plain = torch.autograd.grad(losses(torch.arange(12)).sum() / 20.0, list(model.parameters()))
    expected = torch.cat([piece.flatten() for piece in plain])
    torch.testing.assert_close(flat_grad(model), expected, rtol=1e-4, atol=1e-6)


def test_an_empty_batch_releases_noise_alone() -> None:
    model, losses = problem()
    query = paid(sample_rate=1e-12)
    noisy_gradient(model, losses, torch.arange(12), 3, paid=query, key=KEY)
    noise = KEY.normals("gradients/noise", 3, flat_grad(model).numel()) * (1.3 * 0.5 / 20.0)
    torch.testing.assert_close(flat_grad(model), noise.float())


@pytest.mark.parametrize("micro_batch", [1, 7, 64, 150])
def test_micro_batches_release_what_one_batch_releases(micro_batch: int) -> None:
    model, losses = problem(150)
    ids, grads = torch.arange(150), []
    for size in (512, micro_batch):
        noisy_gradient(model, losses, ids, 0, paid=paid(), key=KEY, micro_batch=size)
        grads.append(flat_grad(model))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_without_noise_and_no_hook_stays_behind(transposed: bool, fails: bool) -> None:
    model, losses = problem(transposed=transposed)
    model.eval()
    for p in model.parameters():
        p.grad = torch.full_like(p, 77.0)
    # The second chunk fails, when the first one has left its traces.
    failing = lambda rows: losses(rows if rows[0] == 0 or not fails else rows + 99)  # noqa: E731
    call = lambda: noisy_gradient(  # noqa: E731
        model, failing, torch.arange(12), 0, paid=paid(), key=KEY, micro_batch=5
    )
    if fails:
        with pytest.raises(IndexError):
            call()
        assert all(p.grad is None for p in model.parameters())
    else:
        call()
        assert float(flat_grad(model).abs().max()) < 70.0
    kept = ("grad_sample", "_current_grad_sample", "_norm_sample", "_forward_counter")
    assert not any(hasattr(p, name) for p in model.parameters() for name in kept)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
        assert not {"activations", "max_batch_len", "ft_compute_sample_grad"} & set(vars(module))
        assert not module.training


def test_a_step_that_was_not_paid_for_is_refused_before_a_record_is_read() -> None:
    model, _ = problem()
    with pytest.raises(BudgetExceeded, match="step 10 of 'gradients' was not paid for"):
        noisy_gradient(model, never, torch.arange(12), 10, paid=paid(), key=KEY)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_subset_of_parameters_leaves_the_others_alone(transposed: bool) -> None:
    model, losses = problem(transposed=transposed)
    head = list(model[3].parameters())
    noisy_gradient(model, losses, torch.arange(12), 0, paid=paid(), key=KEY, parameters=head)
    assert all(p.grad is not None for p in head)
    assert all(p.grad is None and p.requires_grad for p in model[0].parameters())


def test_parameters_of_another_model_and_unknown_backends_are_refused() -> None:
    model, losses = problem()
    with pytest.raises(BadInput, match="not part of the model"):
        queried_parameters(model, list(nn.Linear(2, 2).parameters()))
    with pytest.raises(BadInput, match="choose from: auto, bookkeeping, opacus"):
        noisy_gradient(model, losses, torch.arange(3), 0, paid=paid(), key=KEY, backend="magic")


def test_the_gradient_has_the_type_of_its_parameter() -> None:
    model = nn.Linear(4, 2).to(torch.bfloat16)
    x = torch.randn(6, 4, dtype=torch.bfloat16)
    noisy_gradient(model, lambda r: model(x[r]).sum(1), torch.arange(6), 0, paid=paid(), key=KEY)
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.bfloat16}


def _rank(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=size)
    model, losses = problem()
    # The last rank holds no record and takes part all the same.
    mine = torch.arange(12).tensor_split(size - 1)[rank] if rank < size - 1 else torch.arange(0)
    local = lambda rows: losses(mine[rows])  # noqa: E731
    noisy_gradient(model, local, mine, 1, paid=paid(), key=KEY, world=current_world())
    torch.save(flat_grad(model), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_three_ranks_release_what_one_releases_with_noise_once(tmp_path: Path) -> None:
    # Forked: three fresh processes would load torch for eight seconds each.
    mp.start_processes(_rank, (3, str(tmp_path)), nprocs=3, start_method="fork")
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    model, losses = problem()
    noisy_gradient(model, losses, torch.arange(12), 1, paid=paid(), key=KEY)
    assert torch.equal(ranks[0], ranks[1])
    assert torch.equal(ranks[0], ranks[2])
    torch.testing.assert_close(ranks[0], flat_grad(model), rtol=1e-5, atol=1e-6)
