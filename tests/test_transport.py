"""Entropic transport against what is known in closed form, and against autograd."""

import pytest
import torch

from dpray.transport import costs, transport_gradient, transport_plan

RNG = torch.Generator().manual_seed(0)


def even(count):
    return torch.full((count,), 1 / count, dtype=torch.float64)


def test_a_tiny_blur_finds_the_assignment_of_points_on_a_line():
    left = torch.rand(12, 1, generator=RNG, dtype=torch.float64)
    right = torch.rand(12, 1, generator=RNG, dtype=torch.float64)
    cost = costs(left, right, 0.0)
    plan = transport_plan(cost, even(12), even(12), blur=1e-5, iterations=200)
    best = (left.flatten().sort().values - right.flatten().sort().values).square().mean()
    assert torch.isclose((plan * cost).sum(), best, rtol=0.02)


def test_a_plan_has_the_weights_it_was_given():
    left = torch.rand(5, generator=RNG, dtype=torch.float64)
    right = torch.rand(7, generator=RNG, dtype=torch.float64)
    left, right = left / left.sum(), right / right.sum()
    cost = torch.rand(5, 7, generator=RNG, dtype=torch.float64)
    plan = transport_plan(cost, left, right, blur=0.1, iterations=100)
    assert torch.allclose(plan.sum(0), right) and torch.allclose(plan.sum(1), left, atol=1e-6)


def test_a_large_blur_sends_everything_everywhere():
    cost = torch.rand(4, 6, generator=RNG, dtype=torch.float64)
    plan = transport_plan(cost, even(4), even(6), blur=1e4, iterations=5)
    assert torch.allclose(plan, torch.full_like(plan, 1 / 24), rtol=1e-3)


def test_a_point_without_weight_goes_nowhere():
    weights = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    cost = torch.rand(3, 4, generator=RNG, dtype=torch.float64)
    plan = transport_plan(cost, weights, even(4), blur=0.01, iterations=50)
    assert (plan[1] == 0).all() and plan.isfinite().all()


@pytest.mark.parametrize("absolute", [0.0, 1.0])
def test_the_gradient_is_that_of_the_entropic_cost(absolute):
    points, targets = (torch.randn(4, 3, generator=RNG, dtype=torch.float64) for _ in range(2))

    def entropic_cost(moved):
        cost = costs(moved, targets, absolute)
        plan = transport_plan(cost, even(4), even(4), blur=0.5, iterations=200)
        return float((plan * (cost + 0.5 * (plan * 16).log())).sum())

    step = torch.zeros_like(points)
    step[1, 2] = 1e-5
    slope = (entropic_cost(points + step) - entropic_cost(points - step)) / 2e-5
    settings = {"absolute": absolute, "blur": 0.5, "iterations": 200}
    found = transport_gradient(points, even(4), targets, even(4), **settings)
    assert float(found[1, 2]) == pytest.approx(slope, rel=1e-3)
