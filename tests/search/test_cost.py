"""What whole searches cost, against the numbers of the reference, section 6.3."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import dp_accounting as dp
import pytest

from dpray.errors import BadInput
from dpray.privacy.searched import Searched
from dpray.search.budgets import CannotMeetBudget, DataFacts
from dpray.search.cost import cost_beforehand, possible_events, search_cost
from dpray.search.space import choice, log_uniform
from dpray.search.trials import SearchSpec

GAUSSIAN = dp.GaussianDpEvent(3.730632)  # epsilon 1 at delta 1e-5
QUIETER = dp.GaussianDpEvent(6.0)
SEARCH = SearchSpec(
    method="dp-sgd",
    dataset="mnist",
    charge="select",
    trials=20,
    epsilon=1.0,
    space={"lr": log_uniform(0.1, 10.0), "noise_multiplier": choice(1.0, 8.0, 16.0)},
    settings={"batch_size": 60},
    least_steps=1,
)
FACTS = DataFacts(num_records=60, num_classes=3)  # all in every batch: every cost is a Gaussian's


@pytest.mark.parametrize(
    ("change", "epsilon", "bound"),
    [
        ({"law": "geometric"}, 2.217, "profile"),
        ({"law": "logarithmic"}, 1.857, "profile"),
        ({"charge": "compose"}, 5.407, "pld"),
    ],
)
def test_a_search_costs_what_the_reference_says(change, epsilon: float, bound: str) -> None:
    cost = search_cost(replace(SEARCH, **change), GAUSSIAN, GAUSSIAN)
    assert cost.epsilon == pytest.approx(epsilon, abs=0.01)
    assert (cost.bound, cost.delta, cost.releasable) == (bound, 1e-5, True)
    one_more = search_cost(replace(SEARCH, **change, trials=21), GAUSSIAN, GAUSSIAN)
    assert one_more.epsilon > cost.epsilon


def test_training_and_score_stand_side_by_side_and_the_costlier_counts() -> None:
    whole = search_cost(SEARCH, GAUSSIAN, GAUSSIAN).epsilon
    assert search_cost(SEARCH, GAUSSIAN, QUIETER).epsilon == pytest.approx(whole)
    assert search_cost(SEARCH, QUIETER, GAUSSIAN).epsilon == pytest.approx(whole)
    assert search_cost(SEARCH, QUIETER, QUIETER).epsilon < 0.8 * whole


@pytest.mark.parametrize("charge", ["select", "compose"])
def test_of_several_events_the_costliest_counts(charge: str) -> None:
    search = replace(SEARCH, charge=charge)
    alone = search_cost(search, GAUSSIAN, QUIETER).epsilon
    both = search_cost(search, [QUIETER, GAUSSIAN], QUIETER)
    # What may be chosen trial by trial adds up by the looser bound.
    assert alone <= both.epsilon * (1 + 1e-6)
    assert both.epsilon < 1.1 * alone
    assert search_cost(search, [QUIETER], QUIETER).epsilon < 0.8 * alone


def test_the_card_hears_what_epsilon_covers() -> None:
    select = search_cost(SEARCH, GAUSSIAN, GAUSSIAN)
    assert "secret number of trials (geometric, mean 20, at most 865)" in select.covers
    compose = search_cost(replace(SEARCH, charge="compose", trials=40), GAUSSIAN, GAUSSIAN)
    assert compose.covers == "the run and the search of at most 40 trials that chose it"
    assert compose.to_json()["epsilon"] == compose.epsilon


@pytest.mark.parametrize("change", [{}, {"cap": 450}, {"charge": "compose"}])
def test_the_card_gets_what_the_cost_was_computed_from(change) -> None:
    cost = search_cost(replace(SEARCH, **change), [QUIETER, GAUSSIAN], QUIETER)
    again = Searched.from_json(json.loads(json.dumps(cost.to_json()))["searched"])
    assert again == cost.searched
    assert again.epsilon(SEARCH.delta, SEARCH.adjacency) == cost.epsilon
    assert [trial.training for trial in again.trials] == [QUIETER, GAUSSIAN]
    assert search_cost(replace(SEARCH, charge="none")).searched is None


def test_a_search_on_a_proxy_costs_nothing_and_one_that_nobody_pays_is_not_fit_for_release() -> (
    None
):
    public = cost_beforehand(replace(SEARCH, charge="public", proxy="digits"), FACTS)
    assert (public.epsilon, public.delta, public.releasable) == (0.0, 0.0, True)
    assert public.covers.startswith("this run alone: its settings were chosen on digits")
    none = cost_beforehand(replace(SEARCH, charge="none"), FACTS)
    assert none.epsilon == math.inf and not none.releasable
    assert "nobody paid for" in none.to_json()["reason"]
    assert none.to_json()["epsilon"] is None


def test_a_cap_that_cuts_too_often_is_refused_and_one_that_rarely_does_costs_little() -> None:
    with pytest.raises(BadInput, match=r"a cap of 30 trials cuts .* short so often"):
        search_cost(replace(SEARCH, cap=30), GAUSSIAN, GAUSSIAN)
    capped = search_cost(replace(SEARCH, cap=450), GAUSSIAN, GAUSSIAN).epsilon
    assert capped == pytest.approx(search_cost(SEARCH, GAUSSIAN, GAUSSIAN).epsilon, rel=1e-3)


def test_a_charged_search_needs_both_events() -> None:
    with pytest.raises(BadInput, match="events of training and score"):
        search_cost(SEARCH, GAUSSIAN)


def test_the_events_of_a_space_are_those_that_meet_the_budget() -> None:
    steps = sorted(event.count for event in possible_events(SEARCH, FACTS))
    assert steps == [4, 18]  # (noise / 3.73)^2; none at noise 1
    free = replace(SEARCH, space={"lr": log_uniform(0.1, 10.0)}, settings={"steps": 4})
    assert [event.count for event in possible_events(free, FACTS)] == [4]
    with pytest.raises(CannotMeetBudget, match="no combination of noise_multiplier"):
        possible_events(replace(SEARCH, space={"noise_multiplier": choice(0.5)}), FACTS)


def test_the_cost_beforehand_is_that_of_trials_at_the_budget() -> None:
    cost = cost_beforehand(SEARCH, FACTS)
    assert cost.epsilon == pytest.approx(2.217, abs=0.01)
    dearer = cost_beforehand(replace(SEARCH, epsilon=2.0), FACTS)
    assert dearer.epsilon > 1.5 * cost.epsilon
