import json
import math

import pytest

from dpray.errors import BadInput, LedgerDamaged
from dpray.privacy.accounting import Adjacency, Budget
from dpray.privacy.card import Card, make_card, verify
from dpray.privacy.ledger import Ledger
from dpray.privacy.queries import PoissonGradients

FACTS = {"noise_multiplier": 1.1, "steps": 100, "sample_rate": 0.01, "clip_norm": 0.5}


def make(tmp_path, *, epsilon: float = 3.0, noise: float = 1.1, **words) -> Card:
    ledger = Ledger.create(
        tmp_path / f"{epsilon}-{noise}.jsonl",
        Budget(epsilon, 1e-5),
        subject={"dataset": "d"},
        adjacency=Adjacency.ADD_REMOVE,
    )
    query = PoissonGradients(
        sample_rate=0.01, steps=100, clip_norm=0.5, noise_multiplier=noise, expected_batch_size=5
    )
    ledger.pay(query)
    return make_card(
        run_id="r1",
        method="m",
        dataset="d",
        ledger=ledger,
        facts=FACTS,
        public={"N": 500},
        **{"num_records": 500, **words},
    )


def test_epsilon_can_be_computed_again_from_the_file_alone(tmp_path):
    card = make(tmp_path)
    checked = verify(Card.read(card.write(tmp_path)))
    assert checked.recomputed == pytest.approx(card.epsilon, abs=1e-6)
    assert 0 < checked.recomputed <= 3.0


def test_a_card_says_on_what_its_settings_were_chosen(tmp_path):
    card = make(tmp_path)
    assert any("settings are taken as chosen without these records" in a for a in card.assumptions)
    # On the page a line may break anywhere.
    assert "defaults were, by looking at public test sets" in " ".join(card.text().split())


def test_a_card_that_says_less_than_its_events_is_refused(tmp_path):
    path = make(tmp_path).write(tmp_path)
    value = json.loads(path.read_text())
    value["epsilon"] *= 0.99
    path.write_text(json.dumps(value))
    with pytest.raises(LedgerDamaged, match="its events cost"):
        verify(Card.read(path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("noise_multiplier", 9.0), ("steps", 5), ("sample_rate", 0.5), ("clip_norm", 9.0)),
        ("epsilon_by_accountant", {"pld": 0.1}),
        ("reasons_against", ["it is bad"]),
    ],
)
def test_a_number_that_is_not_the_ledgers_is_refused(tmp_path, field, value):
    path = make(tmp_path).write(tmp_path)
    changed = {**json.loads(path.read_text()), field: value}
    path.write_text(json.dumps(changed))
    with pytest.raises(LedgerDamaged):
        verify(Card.read(path))


def test_a_card_whose_events_were_changed_is_refused(tmp_path):
    path = make(tmp_path).write(tmp_path)
    value = json.loads(path.read_text())
    value["ledger"]["entries"][0]["event"]["event"]["event"]["noise_multiplier"] = 5.0
    path.write_text(json.dumps(value))
    with pytest.raises(LedgerDamaged, match="does not lead to its head"):
        verify(Card.read(path))


def test_the_text_says_what_a_reader_must_know(tmp_path):
    text = make(tmp_path).text()
    for words in ("add-or-remove-one", "one record", "Poisson", "dp-accounting", "prv", "N: 500"):
        assert words in text
    assert "fit for release    yes" in text


def test_a_test_key_or_a_huge_epsilon_is_not_fit_for_release(tmp_path):
    card = make(tmp_path, for_tests=True)
    assert not card.fit_for_release
    assert "test key" in card.text()
    weak = make(tmp_path, epsilon=math.inf, noise=0.2)
    assert weak.epsilon > 20
    assert not weak.fit_for_release
    assert "protects nobody" in weak.text()


def test_a_delta_above_one_over_n_is_not_fit_for_release(tmp_path):
    card = make(tmp_path, num_records=200_000)
    assert not card.fit_for_release
    assert "publishing somebody outright" in card.text()


def test_what_is_not_a_card_is_refused_in_one_line(tmp_path):
    path = tmp_path / "x.json"
    for content in ("{", "[]", '{"privacy_card": 1}', '{"privacy_card": 2}'):
        path.write_text(content)
        with pytest.raises(BadInput):
            Card.read(path)
    with pytest.raises(BadInput, match="cannot read"):
        Card.read(tmp_path / "missing.json")
