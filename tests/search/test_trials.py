"""A search as a value: to JSON and back, and from a draw to the run of a trial."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpray.errors import BadInput
from dpray.evaluation.metrics import Source
from dpray.execute import execute
from dpray.privacy.accounting import Adjacency
from dpray.privacy.ledger import HOLD_OUT, TRAINING
from dpray.privacy.noise import RunKey
from dpray.search.budgets import CannotMeetBudget, DataFacts
from dpray.search.refusals import check_data
from dpray.search.space import choice, log_uniform
from dpray.search.trials import SearchSpec, trial_rng

FACTS = DataFacts(num_records=60, num_classes=3)
SEARCH = SearchSpec(
    method="dp-sgd",
    dataset="mnist:0,2@rest",
    charge="select",
    trials=20,
    epsilon=1.0,
    seed=7,
    settings={"features": "pixels", "batch_size": 60},
    space={"lr": log_uniform(0.1, 10.0), "noise_multiplier": choice(1.0, 8.0, 16.0)},
    least_steps=1,
)


def test_a_search_goes_to_json_and_back(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(json.dumps(SEARCH.to_json()))
    assert SearchSpec.read(tmp_path / "search.json") == SEARCH


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trails": 3}, "no field of a search 'trails'.*did you mean 'trials'"),
        ({"adjacency": "swap"}, "no adjacency 'swap'"),
        ({"space": 3}, "search space cannot be read"),
    ],
)
def test_what_is_no_search_is_one_line(change: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        SearchSpec.from_json(SEARCH.to_json() | change)
    with pytest.raises(BadInput, match="the search is incomplete"):
        SearchSpec.from_json({"method": "dp-sgd", "space": {}})


def test_a_trial_is_a_run_on_the_tuning_part_at_the_budget_of_all() -> None:
    first, second = (
        SEARCH.trial_spec({"lr": lr, "noise_multiplier": noise}, FACTS)
        for lr, noise in ((0.5, 8.0), (2.0, 16.0))
    )
    for trial in (first, second):
        assert trial.dataset == "mnist:0,2@rest@tuning"
        assert (trial.epsilon, trial.delta, trial.seed) == (1.0, 1e-5, 7)
        assert trial.noise_multiplier is None  # it follows from budget and steps once more
    # (noise / 3.73)^2 steps at full batches.
    assert first.settings == {"features": "pixels", "batch_size": 60, "lr": 0.5, "steps": 4}
    assert second.settings["steps"] == 18


def test_a_draw_that_cannot_meet_the_budget_is_rejected_and_drawn_again() -> None:
    with pytest.raises(CannotMeetBudget, match="affords 0 steps"):
        SEARCH.trial_spec({"lr": 1.0, "noise_multiplier": 1.0}, FACTS)
    rng = np.random.default_rng(0)
    drawn = [SEARCH.draw_that_fits(FACTS, rng)["noise_multiplier"] for _ in range(40)]
    assert set(drawn) == {8.0, 16.0}
    hopeless = replace(SEARCH, space={"noise_multiplier": choice(0.5, 1.0)})
    with pytest.raises(CannotMeetBudget, match="none meets the budget"):
        hopeless.draw_that_fits(FACTS, rng)


def test_with_a_proxy_trials_read_that_and_the_winner_the_private_records() -> None:
    search = replace(SEARCH, charge="public", proxy="fashion-mnist")
    drawn = {"lr": 1.0, "noise_multiplier": 8.0}
    assert search.trial_spec(drawn, FACTS).dataset == "fashion-mnist"
    final = search.final_spec(drawn, DataFacts(num_records=600, num_classes=2))
    assert final.dataset == "mnist:0,2@rest"
    assert final.settings["steps"] > 4  # of more records, a smaller share is in a batch


def test_public_data_beside_a_proxy_are_the_proxys_own() -> None:
    search = replace(
        SEARCH, method="augm", charge="public", dataset="mnist@rest", public="mnist@labelling"
    )
    found = replace(search, proxy="fashion-mnist").words()
    assert found == ("fashion-mnist@rest", "fashion-mnist@labelling")
    assert replace(search, proxy="drawn.npz").words() == ("drawn.npz", "mnist@labelling")
    assert replace(search, charge="compose").words() == ("mnist@rest@tuning", "mnist@labelling")


def test_the_number_of_trials_is_drawn_by_the_key_or_as_declared() -> None:
    drawn = {SEARCH.number_of_trials(RunKey.insecure(number)) for number in range(20)}
    assert len(drawn) > 5
    assert replace(SEARCH, cap=1).number_of_trials(RunKey.insecure(0)) == 1
    composed = replace(SEARCH, charge="compose")
    assert composed.number_of_trials(RunKey.insecure(0)) == 20


def test_the_draws_of_a_trial_follow_from_the_key_and_its_number_alone() -> None:
    def at(key: int, number: int) -> dict:
        return SEARCH.draw_that_fits(FACTS, trial_rng(RunKey.insecure(key), number))

    assert at(0, 3) == at(0, 3)
    assert len({at(0, 3)["lr"], at(0, 4)["lr"], at(1, 3)["lr"]}) == 3


def test_a_trial_pays_for_its_training_and_beside_it_for_its_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    images = rng.integers(0, 100, (300, 8, 8), dtype=np.uint8) + 50 * labels[:, None, None]
    path = tmp_path / "own.npz"
    np.savez(path, images=images.astype(np.uint8), labels=labels)
    search = replace(SEARCH, dataset=str(path), settings={"features": "pixels", "batch_size": 1000})
    search.check()
    facts = check_data(search, print)
    assert 200 < facts.num_records < 270
    spec = search.trial_spec({"lr": 1.0, "noise_multiplier": 16.0}, facts)
    result = execute(spec, test_key=0)
    sources = {metric.name: metric.source for metric in result.metrics}
    assert sources["test_accuracy"] is Source.NOISY_HOLD_OUT
    entries = result.card.ledger["entries"]
    assert [entry["part"] for entry in entries] == [TRAINING, HOLD_OUT]
    assert 0.99 < result.metric("epsilon") <= 1.0


def test_what_cannot_work_on_the_records_is_refused_before_the_first_trial() -> None:
    search = replace(
        SEARCH, method="dp-moments", dataset="digits", settings={}, space={"radius": choice(0.3, 3)}
    )
    search.check()
    with pytest.raises(BadInput, match="radius 3 must be above 0 and at most 1"):
        check_data(search, print)


def test_the_adjacency_of_a_search_is_that_of_its_trials() -> None:
    search = replace(SEARCH, charge="public", proxy="digits", adjacency=Adjacency.REPLACE)
    drawn = {"lr": 1.0, "noise_multiplier": 16.0}
    assert search.trial_spec(drawn, FACTS).adjacency is Adjacency.REPLACE
    assert search.trial_spec(drawn, FACTS).settings["steps"] == 4  # (16 / 2 / 3.73)^2
