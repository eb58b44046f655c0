import json
import math

import pytest

from dpray.errors import BadInput, BudgetExceeded, CannotResume, LedgerDamaged
from dpray.privacy.accounting import Adjacency, Budget
from dpray.privacy.ledger import HOLD_OUT, Ledger, ledger_from_json
from dpray.privacy.queries import GaussianSum

SUBJECT = {"dataset": "d", "settings": "s"}


def gaussian(name: str, noise: float = 10.0, steps: int = 1) -> GaussianSum:
    return GaussianSum(name=name, noise_multiplier=noise, steps=steps)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path):
    return Ledger.create(path, Budget(1.0, 1e-5), subject=SUBJECT, adjacency=Adjacency.ADD_REMOVE)


def test_what_is_paid_is_on_the_disk_before_the_data_are_read(ledger, path):
    ledger.pay(gaussian("first"))
    again = Ledger.open(path, subject=SUBJECT)
    assert [entry.name for entry in again.entries] == ["first"]
    assert again.head == ledger.head
    assert again.epsilon == ledger.epsilon > 0


def test_a_refused_query_leaves_no_trace(ledger, path):
    ledger.pay(gaussian("first"))
    before, epsilon = path.read_bytes(), ledger.epsilon
    with pytest.raises(BudgetExceeded, match="would bring epsilon"):
        ledger.pay(gaussian("too much", noise=0.5))
    assert path.read_bytes() == before
    assert ledger.epsilon == epsilon


def test_after_a_crash_the_same_query_is_found_and_adds_nothing(ledger, path):
    ledger.pay(gaussian("first"))
    again = Ledger.open(path, subject=SUBJECT)
    again.pay(gaussian("first"))
    assert (again.epsilon, again.head, len(again.entries)) == (ledger.epsilon, ledger.head, 1)


def test_one_process_is_handed_a_query_once(ledger, path):
    for one in (ledger, Ledger.open(path, subject=SUBJECT)):
        if one is ledger:
            paid = one.pay(gaussian("first", steps=2))
            paid.check(0)
            with pytest.raises(BudgetExceeded, match="asked already"):
                paid.check(0)
        with pytest.raises(BudgetExceeded, match="already by this process"):
            ledger.pay(gaussian("first", steps=2))


@pytest.mark.parametrize("other", [{"noise": 20.0}, {"steps": 2}, {"sensitivity": 2.0}])
def test_another_query_under_the_same_name_is_refused(ledger, path, other):
    ledger.pay(gaussian("first"))
    noise, steps = other.get("noise", 10.0), other.get("steps", 1)
    changed = GaussianSum(
        name="first",
        noise_multiplier=noise,
        steps=steps,
        sensitivity=other.get("sensitivity", 1.0),
    )
    with pytest.raises(LedgerDamaged, match="cannot go on as"):
        Ledger.open(path, subject=SUBJECT).pay(changed)


@pytest.mark.parametrize("noise", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_noise_that_is_no_noise_never_reaches_the_accountant(noise):
    with pytest.raises(BadInput):
        gaussian("first", noise=noise)


def test_the_charge_is_synced_before_pay_returns_and_others_wait_for_it(ledger, path, monkeypatch):
    from dpray.privacy import ledger as module

    happened = []
    honest = module.os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda f: (honest(f), happened.append("synced")))
    ledger.wait_for_all = lambda: happened.append(f"waited after {path.read_text().count('first')}")
    ledger.pay(gaussian("first"))
    assert happened[0] == "synced"
    assert happened[-1] == "waited after 1"


def test_a_kill_at_any_byte_loses_at_most_the_line_that_was_not_acted_on(ledger, path):
    ledger.pay(gaussian("first"))
    whole, head = path.read_bytes(), path.with_suffix(".head").read_bytes()
    ledger.pay(gaussian("second"))
    longer = path.read_bytes()
    for cut in range(len(whole), len(longer)):
        # The line was being written: pay had not returned, the head still names the first.
        path.write_bytes(longer[:cut])
        path.with_suffix(".head").write_bytes(head)
        assert [e.name for e in Ledger.open(path, subject=SUBJECT).entries] == ["first"]
        assert path.read_bytes() == whole
    path.write_bytes(longer)
    assert len(Ledger.open(path, subject=SUBJECT).entries) == 2


def test_a_cut_after_the_fact_is_refused(ledger, path):
    ledger.pay(gaussian("first"))
    whole = path.read_bytes()
    ledger.pay(gaussian("second"))
    for content in (whole, whole[:-5], path.read_bytes()[:-3]):
        path.write_bytes(content)
        with pytest.raises(LedgerDamaged, match="acted on"):
            Ledger.open(path, subject=SUBJECT)


def test_a_changed_byte_is_found(ledger, path):
    ledger.pay(gaussian("first"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"10.0", b"99.0"))
    with pytest.raises(LedgerDamaged, match="hash does not match"):
        Ledger.open(path, subject=SUBJECT)


def test_other_data_or_settings_are_refused_by_name(ledger, path):
    for what in SUBJECT:
        with pytest.raises(CannotResume, match=f"the {what} changed"):
            Ledger.open(path, subject={**SUBJECT, what: "another"})


def test_somebody_else_writing_to_the_file_is_noticed(ledger, path):
    other = Ledger.open(path, subject=SUBJECT)
    other.pay(gaussian("theirs"))
    with pytest.raises(LedgerDamaged, match="changed by somebody else"):
        ledger.pay(gaussian("ours"))


def test_disjoint_parts_cost_the_dearer_of_the_two_and_the_same_part_adds_up(ledger):
    ledger.pay(gaussian("training", noise=6.0))
    alone = ledger.epsilon
    ledger.pay(gaussian("hold-out", noise=8.0), part=HOLD_OUT)
    assert ledger.epsilon == alone
    ledger.pay(gaussian("more training", noise=6.0))
    assert ledger.epsilon > alone


def test_a_ledger_on_a_card_leads_to_the_same_head(ledger):
    ledger.pay(gaussian("first"))
    value = json.loads(json.dumps(ledger.to_json()))
    assert ledger_from_json(value).head == ledger.head
    value["entries"][0]["event"]["noise_multiplier"] = 11.0
    assert ledger_from_json(value).head != ledger.head


def test_an_unpaid_step_is_refused(ledger):
    paid = ledger.pay(gaussian("first", steps=3))
    paid.check(2)
    for step in (-1, 3):
        with pytest.raises(BudgetExceeded, match="not paid for"):
            paid.check(step)


def test_a_run_with_fixed_noise_has_no_upper_limit(path):
    ledger = Ledger.create(
        path, Budget(math.inf, 1e-5), subject=SUBJECT, adjacency=Adjacency.ADD_REMOVE
    )
    ledger.pay(gaussian("little noise", noise=0.1))
    assert Ledger.open(path, subject=SUBJECT).epsilon > 50


def gaussians(noise):
    return [
        GaussianSum(name="first", noise_multiplier=noise / 0.2**0.5),
        GaussianSum(name="second", noise_multiplier=noise / 0.8**0.5),
    ]


def test_queries_calibrated_together_take_the_budget_and_no_more():
    ledger = Ledger(Budget(1.0, 1e-5))
    first, second = ledger.calibrate_together(gaussians)
    ledger.pay(first)
    ledger.pay(second)
    assert 0.999 < ledger.epsilon <= 1.0
    # Shares of 0.2 and 0.8 compose to the single Gaussian of epsilon 1 (privacy.md 5.3).
    assert second.noise_multiplier * 0.8**0.5 == pytest.approx(3.730632, abs=1e-4)


def test_a_crash_between_two_payments_changes_nothing(tmp_path):
    ledger = Ledger.create(
        tmp_path / "ledger", Budget(1.0, 1e-5), subject={}, adjacency=Adjacency.ADD_REMOVE
    )
    first, second = ledger.calibrate_together(gaussians)
    ledger.pay(first)
    again = Ledger.open(tmp_path / "ledger", subject={})
    assert again.calibrate_together(gaussians) == [first, second]
    again.pay(first)
    again.pay(second)
    assert again.calibrate_together(gaussians) == [first, second]
    assert 0.999 < again.epsilon <= 1.0
