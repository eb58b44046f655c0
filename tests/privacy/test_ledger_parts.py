"""Parts cut by label: charges to disjoint ones do not add up, and nothing else is free."""

import json

import pytest

from dpray.api import total_epsilon
from dpray.errors import BadInput, BudgetExceeded, LedgerDamaged
from dpray.privacy.accounting import Adjacency, Budget
from dpray.privacy.card import Card, make_card, verify
from dpray.privacy.ledger import EVERY_RECORD, HOLD_OUT, TRAINING, Ledger
from dpray.privacy.ledger_part import LedgerPart
from dpray.privacy.parts import CONDITION, may_share_a_record, of_classes
from dpray.privacy.queries import GaussianSum

FIRST, SECOND = of_classes((5, 6)), of_classes((1, 2))


def gaussian(name: str, noise: float = 6.0) -> GaussianSum:
    return GaussianSum(name=name, noise_multiplier=noise)


def epsilon_of(*parts: str, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
    """Of one release of the same noise on each of `parts`."""
    ledger = Ledger(Budget(50.0, 1e-5), adjacency)
    for number, part in enumerate(parts):
        ledger.pay(gaussian(f"query {number}"), part=part)
    return ledger.epsilon


def test_two_tasks_cost_what_one_does_and_the_same_task_twice_costs_more():
    one, two = epsilon_of(TRAINING), epsilon_of(TRAINING, TRAINING)
    assert epsilon_of(FIRST, SECOND) == one
    assert epsilon_of(FIRST, FIRST) == two > one


def test_what_reads_every_training_record_adds_to_each_task():
    one, two = epsilon_of(TRAINING), epsilon_of(TRAINING, TRAINING)
    assert epsilon_of(FIRST, SECOND, TRAINING) == two
    assert epsilon_of(EVERY_RECORD, SECOND) == two
    assert epsilon_of(FIRST, SECOND, HOLD_OUT) == one


@pytest.mark.parametrize("other", [of_classes((6, 1)), of_classes((0, 5)), f"{TRAINING} / odd"])
def test_parts_that_overlap_without_being_the_same_add_up(other):
    assert epsilon_of(FIRST, other) == epsilon_of(TRAINING, TRAINING)
    assert may_share_a_record(FIRST, other)


def test_a_replaced_record_may_change_its_task_and_pays_for_both():
    replace = Adjacency.REPLACE
    assert epsilon_of(FIRST, SECOND, adjacency=replace) == epsilon_of(
        TRAINING, TRAINING, adjacency=replace
    )


def test_calibration_leaves_a_task_the_whole_budget_and_replace_one_does_not():
    ledger = Ledger(Budget(1.0, 1e-5))
    for part in (FIRST, SECOND):
        ledger.pay(ledger.calibrate(lambda n, p=part: gaussian(p, n), part=part), part=part)
    assert 0.999 < ledger.epsilon <= 1.0
    ledger = Ledger(Budget(1.0, 1e-5), Adjacency.REPLACE)
    ledger.pay(ledger.calibrate(lambda noise: gaussian("a", noise), part=FIRST), part=FIRST)
    with pytest.raises(BudgetExceeded):
        ledger.pay(ledger.calibrate(lambda noise: gaussian("b", noise), part=SECOND), part=SECOND)


def on_card(*parts: str) -> dict:
    ledger = Ledger(Budget(50.0, 1e-5))
    ledger.header = {"epsilon": 50.0, "delta": 1e-5, "adjacency": "add-or-remove-one"}
    for number, part in enumerate(parts):
        ledger.pay(gaussian(f"query {number}"), part=part)
    return ledger.to_json()


def test_several_runs_together_are_counted_by_label_also_where_they_were_cut_differently():
    same = [on_card(FIRST, SECOND), on_card(FIRST, SECOND)]
    otherwise = [on_card(FIRST, SECOND), on_card(of_classes((1, 5)), of_classes((2, 6)))]
    apart = [on_card(FIRST), on_card(SECOND)]
    twice = epsilon_of(TRAINING, TRAINING)
    assert total_epsilon(same) == total_epsilon(otherwise) == pytest.approx(twice)
    assert total_epsilon(apart) == pytest.approx(epsilon_of(TRAINING))


def test_a_part_charges_under_its_own_name_and_hands_that_name_to_the_noise():
    ledger = Ledger(Budget(1.0, 1e-5))
    for name, part in (("task 1", FIRST), ("task 2", SECOND)):
        view = LedgerPart(ledger, name, part)
        query = view.calibrate(lambda noise: gaussian("sum", noise))
        assert query.name == "sum"
        assert view.pay(query).query.name == f"{name}/sum"
    assert [(e.name, e.part) for e in ledger.entries] == [
        ("task 1/sum", FIRST),
        ("task 2/sum", SECOND),
    ]
    with pytest.raises(BadInput, match="its own training records"):
        view.pay(gaussian("more"), part=HOLD_OUT)


def test_a_part_follows_the_head_and_comes_back_with_the_noise_it_paid(tmp_path):
    path, budget = tmp_path / "ledger", Budget(1.0, 1e-5)
    whole = Ledger.create(path, budget, subject={}, adjacency=Adjacency.ADD_REMOVE)
    view = LedgerPart(whole, "task 1", FIRST)

    def queries(noise):
        return [gaussian("first", noise), gaussian("second", noise)]

    first, second = view.calibrate_together(queries)
    view.pay(first)
    assert view.head == whole.head == Ledger.open(path, subject={}).head
    again = LedgerPart(Ledger.open(path, subject={}), "task 1", FIRST)
    assert again.calibrate_together(queries) == [first, second]


def test_replace_one_is_refused_before_anything_is_charged():
    ledger = Ledger(Budget(1.0, 1e-5), Adjacency.REPLACE)
    with pytest.raises(BadInput, match="add-or-remove-one neighbours"):
        LedgerPart(ledger, "task 1", FIRST)
    assert ledger.entries == []


def make(tmp_path, *parts: str) -> Card:
    path, budget = tmp_path / "ledger.jsonl", Budget(3.0, 1e-5)
    ledger = Ledger.create(path, budget, subject={}, adjacency=Adjacency.ADD_REMOVE)
    for number, part in enumerate(parts):
        ledger.pay(gaussian(f"query {number}"), part=part)
    words = {"run_id": "r", "method": "m", "dataset": "d", "facts": {}, "public": {}}
    return make_card(ledger=ledger, num_records=500, **words)


def test_a_card_states_the_condition_of_its_parts_and_not_without_them(tmp_path):
    card = make(tmp_path, FIRST, SECOND)
    assert verify(Card.read(card.write(tmp_path))).recomputed == pytest.approx(card.epsilon)
    assert CONDITION in card.text() and FIRST in card.text()
    assert card.treated_as_public["classes of each part"] == [[5, 6], [1, 2]]
    (tmp_path / "plain").mkdir()
    assert CONDITION not in make(tmp_path / "plain", TRAINING).text()


def test_a_card_that_leaves_the_condition_out_is_refused(tmp_path):
    path = make(tmp_path, FIRST, SECOND).write(tmp_path)
    value = json.loads(path.read_text())
    value["assumptions"].remove(CONDITION)
    path.write_text(json.dumps(value))
    with pytest.raises(LedgerDamaged, match="leaves out the condition"):
        verify(Card.read(path))
