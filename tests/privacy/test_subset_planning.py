"""Plans over subsets agree with reference/privacy.md section 4.4."""

import math

import pytest

from dpray.errors import BadInput, DprayError
from dpray.privacy.subset_planning import (
    GRADIENTS_IN_ALL,
    default_steps,
    plan_subsets,
    subset_choices,
)

ONE = {"num_subsets": 2500, "sampling": "one-of-k", "subsets_per_step": 1, "steps": 20_000}
POISSON = {**ONE, "sampling": "poisson"}
ALL = {"num_subsets": 2500, "sampling": "all-subsets", "subsets_per_step": 2500, "steps": 1000}


@pytest.mark.parametrize(
    ("way", "remembers_draws", "noise"),
    [(POISSON, False, 0.395), (ALL, False, 31.62), (ALL, True, 31.62), (POISSON, True, 3.443)],
)
def test_the_least_noise_for_epsilon_10_is_the_references(way, remembers_draws, noise):
    plan = plan_subsets(**way, remembers_draws=remembers_draws, delta=1e-5, epsilon=10.0)
    assert plan.query.noise_multiplier == pytest.approx(noise, rel=2e-3)
    assert plan.query.remembers_draws is remembers_draws
    assert 9.99 < plan.epsilon <= 10
    less = plan.query.noise_multiplier * 0.99
    short = plan_subsets(**way, remembers_draws=remembers_draws, delta=1e-5, noise_multiplier=less)
    assert short.epsilon > 10


def test_one_of_k_needs_the_references_noise_and_no_less():
    def epsilon(noise):
        plan = plan_subsets(**ONE, remembers_draws=False, delta=1e-5, noise_multiplier=noise)
        return plan.epsilon

    assert epsilon(0.790) <= 10 < epsilon(0.788)


def test_accumulated_signal_is_the_references():
    def plan(way, noise):
        return plan_subsets(**way, remembers_draws=False, delta=1e-5, noise_multiplier=noise)

    assert plan(ALL, 31.62).accumulated_signal == pytest.approx(2501, abs=2)
    assert plan(POISSON, 0.395).accumulated_signal == pytest.approx(358, abs=1)
    assert plan(ALL, 31.62).step_signal(10_000) == pytest.approx(2500 / 31.62 / 100)


def test_choices_are_round_numbers_below_all_of_them():
    assert subset_choices(2500) == [
        ("one-of-k", 1),
        *(("poisson", count) for count in (1, 10, 100, 250, 625)),
        ("all-subsets", 2500),
    ]
    assert subset_choices(2) == [("one-of-k", 1), ("poisson", 1), ("all-subsets", 2)]
    with pytest.raises(BadInput, match="at least 2"):
        subset_choices(1)


def test_choices_are_narrowed_by_what_is_asked_for():
    assert subset_choices(100, sampling="all-subsets") == [("all-subsets", 100)]
    assert subset_choices(100, sampling="poisson") == [("poisson", c) for c in (1, 10, 25)]
    assert subset_choices(100, subsets_per_step=7) == [("poisson", 7)]
    assert subset_choices(100, subsets_per_step=1) == [("one-of-k", 1), ("poisson", 1)]
    assert subset_choices(100, subsets_per_step=100) == [("all-subsets", 100)]
    assert subset_choices(100, sampling="poisson", subsets_per_step=100) == [("poisson", 100)]


def test_default_steps_make_the_same_number_of_gradients_within_reason():
    for count in (10, 100, 250, 2500):
        assert default_steps(count) * count == GRADIENTS_IN_ALL
    assert default_steps(1) == 20_000
    assert default_steps(1_000_000) == 30


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"epsilon": 1.0, "noise_multiplier": 1.0},
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"epsilon": 1.0, "steps": 0},
        {"epsilon": 1.0, "subsets_per_step": 2},
    ],
)
def test_what_cannot_be_planned_is_refused(wrong):
    with pytest.raises(DprayError):
        plan_subsets(**{**ONE, "remembers_draws": False, "delta": 1e-5, **wrong})
