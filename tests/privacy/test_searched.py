"""The card of a release that a search chose: it states the epsilon of the whole, and proves it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest

from dpray.errors import BadInput, LedgerDamaged
from dpray.privacy.accounting import Adjacency, Budget
from dpray.privacy.card import Card, card_of_search, make_card, verify
from dpray.privacy.ledger import HOLD_OUT, TRAINING, Ledger
from dpray.privacy.parts import EVERY_RECORD, of_classes
from dpray.privacy.queries import GaussianSum
from dpray.privacy.searched import Searched
from dpray.privacy.selection import Trial, TrialLaw, cost_of_composition, cost_of_selection

DELTA, ADD_REMOVE = 1e-5, Adjacency.ADD_REMOVE
OWN, COSTLIER = dp.GaussianDpEvent(4.0), dp.SelfComposedDpEvent(dp.GaussianDpEvent(7.0), 4)
SCORE = dp.GaussianDpEvent(5.0)
TRIALS = (Trial(OWN, SCORE), Trial(COSTLIER, SCORE))
SELECT = Searched(charge="select", trials=TRIALS, law=TrialLaw.geometric(20), cap=865)
COMPOSE = Searched(charge="compose", trials=TRIALS[:1], num_trials=20)
UNPAID = "its settings were chosen by trials that nobody paid for"


def ledger_of(path: Path, *charges: tuple[str, float]) -> Ledger:
    ledger = Ledger.create(
        path, Budget(math.inf, DELTA), subject={"dataset": "d"}, adjacency=ADD_REMOVE
    )
    for number, (part, noise) in enumerate(charges):
        ledger.pay(GaussianSum(name=f"{number}", noise_multiplier=noise), part=part)
    return ledger


def own_card(tmp_path: Path, *charges: tuple[str, float]) -> Card:
    """Of the trial that was best, as its run wrote it."""
    ledger = ledger_of(tmp_path / "ledger.jsonl", *(charges or ((TRAINING, 4.0), (HOLD_OUT, 5.0))))
    words = {"run_id": "trial-17", "method": "m", "dataset": "d", "facts": {}, "public": {}}
    return make_card(ledger=ledger, num_records=500, **words)


def chosen_by(searched: Searched | None, card: Card, reason: str | None = None) -> Card:
    covers = "the run and the search that chose it"
    return card_of_search(card, run_id="s1", covers=covers, searched=searched, reason=reason)


@pytest.mark.parametrize(
    "searched",
    [
        SELECT,
        COMPOSE,
        replace(SELECT, law=TrialLaw.poisson(3)),
        replace(COMPOSE, trials=(Trial(dp.ComposedDpEvent([OWN, COSTLIER])),)),
        replace(COMPOSE, trials=(Trial(dp.PoissonSampledDpEvent(0.1, OWN), SCORE),)),
    ],
)
def test_what_a_search_was_charged_with_goes_to_json_and_back(searched: Searched) -> None:
    text = json.dumps(searched.to_json(), allow_nan=False)
    assert Searched.from_json(json.loads(text)) == searched


@pytest.mark.parametrize(
    "change",
    [
        {"charge": "public"},
        {"charge": ["select"]},
        {"trials": []},
        {"trials": [{"training": None, "score": None}]},
        {
            "trials": [
                {"training": {"type": "gaussian", "noise_multiplier": math.nan}, "score": None}
            ]
        },
        {"trials": [{"training": {"type": "gaussian", "noise_multiplier": -4.0}, "score": None}]},
        {"law": {"shape": 1.0}},
        {"law": {"shape": 1.0, "mean": 10**400}},
        {"law": None},
        {"cap": 0},
        {"cap": 2.5},
    ],
)
def test_a_damaged_search_is_one_line(change: dict[str, Any]) -> None:
    for damaged in (SELECT.to_json() | change, None, 3, "select"):
        with pytest.raises(LedgerDamaged, match=r"^[^\n]*$"):
            Searched.from_json(damaged)


def test_a_search_has_either_a_law_or_a_number_of_trials() -> None:
    with pytest.raises(BadInput, match="select has law and cap"):
        replace(SELECT, num_trials=3)
    with pytest.raises(BadInput, match="compose has num_trials"):
        replace(COMPOSE, num_trials=None)


def test_the_card_of_the_best_of_a_secret_number_states_what_the_selection_costs(
    tmp_path: Path,
) -> None:
    own = own_card(tmp_path)
    card = Card.read(chosen_by(SELECT, own).write(tmp_path))
    cost = cost_of_selection(TRIALS, TrialLaw.geometric(20), DELTA, cap=865)
    assert card.epsilon == cost.epsilon > 2 * (own.epsilon or 0)
    assert card.epsilon_by_accountant == cost.by_bound()
    assert verify(card).recomputed == pytest.approx(card.epsilon, abs=1e-6)
    assert card.fit_for_release
    # Nothing of it says which trial it was.
    assert "trial-17" not in json.dumps(card.to_json()) + card.text()


def test_the_card_of_a_search_that_pays_for_all_states_their_composition(tmp_path: Path) -> None:
    card = Card.read(chosen_by(COMPOSE, own_card(tmp_path)).write(tmp_path))
    assert card.epsilon == cost_of_composition(TRIALS[0], 20, DELTA).epsilon
    assert set(card.epsilon_by_accountant) == {"pld", "rdp"}
    verify(card)
    fewer = card_of_search(
        card, run_id="s1", covers="", searched=replace(COMPOSE, num_trials=19), reason=None
    )
    assert fewer.epsilon is not None and card.epsilon is not None
    assert fewer.epsilon < card.epsilon


def test_trials_that_cost_differently_add_up_by_the_costliest() -> None:
    both = replace(COMPOSE, trials=TRIALS).bounds(DELTA, ADD_REMOVE)
    alone = replace(COMPOSE, trials=TRIALS[1:]).bounds(DELTA, ADD_REMOVE)
    assert both["pld"] is None
    assert both["rdp"] == pytest.approx(alone["rdp"])
    assert both["rdp"] > 1.1 * replace(COMPOSE, trials=TRIALS[:1]).epsilon(DELTA, ADD_REMOVE)


def _without_search(value: dict[str, Any]) -> None:
    value["search"] = None


def _another_mean(value: dict[str, Any]) -> None:
    value["search"]["law"]["mean"] = 10.0


def _another_law(value: dict[str, Any]) -> None:
    value["search"]["law"]["shape"] = 0.0


def _the_costliest_is_cheaper(value: dict[str, Any]) -> None:
    value["search"]["trials"][1]["training"]["event"]["noise_multiplier"] = 8.0


def _its_own_is_cheaper(value: dict[str, Any]) -> None:
    del value["search"]["trials"][1]
    value["search"]["trials"][0]["training"]["noise_multiplier"] = 4.1


def _the_score_is_cheaper(value: dict[str, Any]) -> None:
    for trial in value["search"]["trials"]:
        trial["score"]["noise_multiplier"] = 5.1


def _without_its_condition(value: dict[str, Any]) -> None:
    del value["assumptions"][0]


def _another_epsilon(value: dict[str, Any]) -> None:
    value["epsilon"] -= 1e-5


def _another_bound(value: dict[str, Any]) -> None:
    value["epsilon_by_accountant"]["rdp"] = value["epsilon"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_search, "its events cost"),
        (_another_mean, "its search costs"),
        (_another_law, "its search costs"),
        (_the_costliest_is_cheaper, "its search costs"),
        (_its_own_is_cheaper, "more than any trial of its search"),
        (_the_score_is_cheaper, "more than any trial of its search"),
        (_without_its_condition, "what the epsilon of its search rests on"),
        (_another_epsilon, "its search costs"),
        (_another_bound, "another epsilon by rdp"),
    ],
)
def test_a_search_that_was_made_cheaper_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = chosen_by(SELECT, own_card(tmp_path)).write(tmp_path)
    verify(Card.read(path))
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(LedgerDamaged, match=message):
        verify(Card.read(path))


@pytest.mark.parametrize(
    "charges",
    [
        [(TRAINING, 4.0)],
        # Gaussians are as one whose 1 / noise^2 is the sum of theirs, and four times 7 is 3.5.
        [(TRAINING, 7.0), (TRAINING, 7.0), (TRAINING, 7.0 / math.sqrt(2)), (HOLD_OUT, 5.0)],
        [(TRAINING, 4.0), (HOLD_OUT, 10.0), (HOLD_OUT, 10.0), (HOLD_OUT, 10.0)],
        # By label: a record is in one of these parts alone.
        [(of_classes([0]), 4.0), (of_classes([1]), 4.0), (HOLD_OUT, 5.0)],
    ],
)
def test_a_run_is_covered_by_a_trial_that_asks_as_much(tmp_path: Path, charges: Any) -> None:
    SELECT.check_ledger(ledger_of(tmp_path / "ledger.jsonl", *charges))


@pytest.mark.parametrize(
    "charges",
    [
        [(TRAINING, 3.49)],
        [(TRAINING, 4.0), (TRAINING, 4.0)],
        [(TRAINING, 4.0), (HOLD_OUT, 4.99)],
        [(TRAINING, 4.0), *[(HOLD_OUT, 10.0)] * 5],
        [(of_classes([0, 1]), 4.0), (of_classes([1]), 4.0)],
        [(EVERY_RECORD, 4.0)],  # which the score of no trial covers
        [(TRAINING, 4.0), ("other records", 100.0)],
    ],
)
def test_a_run_that_was_charged_with_more_is_none_of_the_trials(
    tmp_path: Path, charges: Any
) -> None:
    with pytest.raises(LedgerDamaged, match="more than any trial of its search"):
        SELECT.check_ledger(ledger_of(tmp_path / "ledger.jsonl", *charges))


def test_of_sampled_steps_a_run_may_take_no_more_and_none_with_less_noise(tmp_path: Path) -> None:
    def steps(count: int, noise: float, rate: float = 0.1) -> dp.DpEvent:
        sampled = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
        return dp.SelfComposedDpEvent(sampled, count)

    ledger = ledger_of(tmp_path / "ledger.jsonl", (HOLD_OUT, 5.0))
    ledger.entries.append(replace(ledger.entries[0], part=TRAINING, event=steps(100, 1.1)))

    def accepts(*declared: dp.DpEvent) -> bool:
        trials = tuple(Trial(event, SCORE) for event in declared)
        try:
            replace(SELECT, trials=trials).check_ledger(ledger)
        except LedgerDamaged:
            return False
        return True

    assert accepts(steps(100, 1.1)) and accepts(steps(100, 1.1 * (1 + 1e-12)))
    assert accepts(OWN, steps(101, 1.1)) and accepts(dp.ComposedDpEvent([OWN, steps(100, 1.1)]))
    assert not accepts(steps(99, 1.1)) and not accepts(steps(100, 1.1001))
    assert not accepts(steps(100, 1.1, rate=0.09)) and not accepts(OWN, steps(50, 1.1))


def test_a_run_that_is_no_trial_gets_no_card_of_the_search(tmp_path: Path) -> None:
    with pytest.raises(LedgerDamaged, match="more than any trial of its search"):
        chosen_by(SELECT, own_card(tmp_path, (TRAINING, 3.0), (HOLD_OUT, 5.0)))


def test_a_search_on_public_data_leaves_the_run_its_own_epsilon(tmp_path: Path) -> None:
    own = own_card(tmp_path)
    card = chosen_by(None, own)
    assert card == replace(own, run_id="s1", covers="the run and the search that chose it")
    verify(card)
    assert "The search that chose it" not in card.text()


def test_a_search_that_nobody_paid_for_is_never_fit_for_release(tmp_path: Path) -> None:
    own = own_card(tmp_path)
    card = chosen_by(None, own, UNPAID)
    assert own.fit_for_release and not card.fit_for_release
    assert card.reasons_against == (UNPAID,)
    assert chosen_by(None, card, UNPAID).reasons_against == (UNPAID,)
    verify(card)
    with pytest.raises(LedgerDamaged, match="fit for release, against"):
        verify(replace(card, fit_for_release=True))


def test_a_search_that_costs_too_much_is_not_fit_for_release(tmp_path: Path) -> None:
    card = chosen_by(replace(COMPOSE, num_trials=400), own_card(tmp_path))
    assert card.epsilon is not None and card.epsilon > 20
    assert not card.fit_for_release
    assert "protects nobody" in card.text()
    verify(card)


def test_the_text_tells_of_the_search(tmp_path: Path) -> None:
    own = own_card(tmp_path)
    card = chosen_by(SELECT, own)
    text = card.text()
    for words in ("The search that chose it", "geometric", "20, 865", "2 that may differ"):
        assert words in text
    assert "none but the best is ever shown" in text
    assert f"epsilon of one     {own.epsilon:.6g}" in text
    assert f"epsilon of all     {card.epsilon:.6g}" in text
    compose = chosen_by(COMPOSE, own).text()
    assert "20, all of them charged" in compose and "secret" not in compose


def test_a_card_from_before_searches_still_reads(tmp_path: Path) -> None:
    path = own_card(tmp_path).write(tmp_path)
    value = json.loads(path.read_text())
    del value["search"]
    path.write_text(json.dumps(value))
    card = Card.read(path)
    assert card.search is None
    verify(card)
