"""`reproduce_tables.py baselines`: rows of methods that exist, published figures, true costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dpray import methods

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from reproduce_tables import main  # noqa: E402
from tables import find  # noqa: E402
from tables.baselines import LEARNS, LEARNS_NOTHING, METHODS, outcome  # noqa: E402
from tables.kept import Place  # noqa: E402
from tables.rows import Row  # noqa: E402
from tables.summary import TRUE_COST, markdown, measure  # noqa: E402


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    """As if every method existed."""
    every = dict.fromkeys(METHODS, object)
    monkeypatch.setattr(methods, "table", lambda: every)
    return {row.label: row for row in find("baselines").rows("mnist")}


def kept(row: Row, folder: Path, **metrics: float) -> dict[str, Any]:
    value = {
        "label": row.label,
        "run_id": "a-run",
        "settings": {},
        "epsilon": 9.99,
        "noise_multiplier": 1.5,
        "metrics": metrics,
        "resumed": False,
    }
    Place(row, 0, folder).finished.write_text(json.dumps(value))
    return value


def test_only_methods_that_exist_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "table", lambda: {"dp-merf": object, "vaegm": object})
    for dataset in find("baselines").datasets:
        found = {(row.method, row.epsilon) for row in find("baselines").rows(dataset)}
        assert found == {(name, epsilon) for name in ("dp-merf", "vaegm") for epsilon in (1, 10)}


@pytest.mark.parametrize(
    ("label", "figure", "cost"),
    [
        ("dp-gan, epsilon 10", "94.4 (SoK 74.7, DPImageBench 92.7), epsilon 10", "10.08"),
        ("dp-cgan, epsilon 10", "52.5 (SoK 64.8), epsilon 10", "68 to 70"),
        ("gs-wgan, epsilon 10", "84.9 (SoK 78.3, DPImageBench 75.3), epsilon 10", "about 330"),
        ("gs-wgan, epsilon 1", "SoK 13.2, DPImageBench 72.4, epsilon 1", "about 500"),
        ("dp-merf, epsilon 1", "72.7 (SoK 83.9, DPImageBench 80.3), epsilon 1", "0.726"),
        ("pate-gan, epsilon 1", "SoK: cannot learn images, epsilon 1", "more than claimed"),
    ],
)
def test_published_figures_stand_beside_their_true_cost(
    label: str, figure: str, cost: str, rows: dict[str, Row]
) -> None:
    published = rows[label].published
    assert published is not None and str(published) == figure
    assert cost in published.true_cost


def test_what_published_nothing_shows_nothing(rows: dict[str, Row]) -> None:
    assert rows["vaegm, epsilon 10"].published is None
    assert all(row.published is None for row in find("baselines").rows("digits"))


@pytest.mark.parametrize(
    ("accuracy", "word"), [(0.098, LEARNS_NOTHING), (0.149, LEARNS_NOTHING), (0.6, LEARNS)]
)
def test_a_run_that_guesses_is_said_to_learn_nothing(accuracy: float, word: str) -> None:
    assert outcome({"metrics": {"test_accuracy": accuracy}}) == word
    assert outcome({"metrics": {}, "diverged": "weights"}) == "diverged"


def test_the_table_tells_cost_and_outcome_in_columns(
    rows: dict[str, Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tables.kept._all_settings", lambda spec: {})
    row = rows["gs-wgan, epsilon 1"]
    kept(row, tmp_path, test_accuracy=0.12, lr_accuracy=0.1, domain_fid=900.0, core_seconds=90.0)
    measured = [measure(one, (0,), tmp_path) for one in (row, rows["vaegm, epsilon 1"])]
    lines = markdown(find("baselines"), "mnist", measured).splitlines()
    assert f"| published accuracy, % | {TRUE_COST} | epsilon |" in lines[2]
    assert "| in DPImageBench about 500 | 9.99 | 1.5 | 12.00 | 10.00 | - | 900.0 |" in lines[4]
    assert lines[4].endswith(f"| {LEARNS_NOTHING} | 1.5 | 1 |")
    assert lines[5].startswith("| vaegm, epsilon 1 | - | - | 1 | - | not run |")


def test_other_tables_have_no_such_column(tmp_path: Path) -> None:
    table = find("seed0")
    measured = [measure(row, (0,), tmp_path) for row in table.rows("mnist")[:2]]
    assert TRUE_COST not in markdown(table, "mnist", measured)


def test_the_command_prints_the_rows_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baselines", "--dataset", "digits", "--print", "--out", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert table.startswith("# Synthesis by methods of others, at honest budgets: digits")
    assert "| vaegm, epsilon 10 | - | 10 | - | not run |" in table
    assert f"Outcome: {LEARNS_NOTHING} where the CNN is right on less than 15%" in table
