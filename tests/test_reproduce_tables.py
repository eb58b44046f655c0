"""scripts/reproduce_tables.py: what is finished stays, what was stopped goes on, costs are true."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dpray.errors import BadInput
from dpray.execute import check
from dpray.progress import Bar
from dpray.runs import RunFolder, runs_folder

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from tables import TABLES, find  # noqa: E402
from tables.costs import epsilon_of  # noqa: E402
from tables.kept import Place, run_once  # noqa: E402
from tables.rows import Row, chosen  # noqa: E402
from tables.summary import markdown, measure  # noqa: E402

ROW = Row(
    label="tiny",
    series="tiny",
    method="sgd",
    dataset="digits",
    settings={"model": "linear", "epochs": 1},
)


def hush(text: str) -> None:
    pass


def run(row: Row, folder: Path, seed: int = 0) -> Place:
    place = Place(row, seed, folder)
    run_once(place, track=False, say=hush)
    return place


def num_runs() -> int:
    return len(list(runs_folder().glob("*/result.json")))


def test_a_finished_row_is_not_run_again_and_a_changed_one_is(tmp_path: Path) -> None:
    kept = run(ROW, tmp_path).read()
    assert kept is not None and kept["metrics"]["test_accuracy"] > 0.5
    assert run(ROW, tmp_path).read() == kept
    assert num_runs() == 1
    run(replace(ROW, settings={**ROW.settings, "lr": 0.002}), tmp_path)
    assert num_runs() == 2
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert not list(tmp_path.glob("*.started"))


def test_a_result_of_other_defaults_does_not_count(tmp_path: Path) -> None:
    place = run(ROW, tmp_path)
    text = place.finished.read_text()
    assert '"batch_size": 128' in text  # of the method, not of the row
    place.finished.write_text(text.replace('"batch_size": 128', '"batch_size": 64'))
    assert place.read() is None


@contextmanager
def stopped_at_the_first_step(label: str, total: int | None) -> Iterator[Bar]:
    raise KeyboardInterrupt
    yield


def test_a_run_that_was_stopped_is_taken_up_under_its_own_id(tmp_path: Path) -> None:
    settings = {"features": "pixels", "steps": 2}
    place = Place(replace(ROW, method="dp-sgd", epsilon=3.0, settings=settings), 0, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_once(place, track=False, progress=stopped_at_the_first_step, say=hush)
    run_id = place.started.read_text()
    ledger = RunFolder(runs_folder() / run_id).ledger
    charged = ledger.read_bytes()
    run_once(place, track=False, say=hush)
    kept = place.read()
    assert kept is not None and kept["run_id"] == run_id and kept["resumed"]
    assert ledger.read_bytes() == charged
    assert num_runs() == 1


def test_a_run_whose_folder_is_gone_is_started_anew(tmp_path: Path) -> None:
    place = Place(ROW, 0, tmp_path)
    place.started.write_text("swept-away")
    run_once(place, track=False, say=hush)
    kept = place.read()
    assert kept is not None and kept["run_id"] != "swept-away" and not kept["resumed"]


def test_a_row_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    place, said = Place(ROW, 0, tmp_path), list[str]()
    with open(place.started, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        run_once(place, track=False, say=said.append)
    assert "another process" in said[0]
    assert place.read() is None


@pytest.mark.parametrize(("noise", "epsilon"), [(0.1, 1.1e3), (0.06, 3.43e3), (0.03, 1.43e4)])
def test_the_noise_levels_of_the_source_cost_thousands(noise: float, epsilon: float) -> None:
    rows = [row for row in find("seed0").rows("mnist") if row.noise_multiplier == noise]
    assert len(rows) == 3
    assert [epsilon_of(row) for row in rows] == pytest.approx([epsilon] * 3, rel=0.02)


def test_costs_are_printed_where_nothing_has_run(tmp_path: Path) -> None:
    table = find("seed0")
    measured = [measure(row, row.seeds, tmp_path) for row in table.rows("mnist")]
    lines = markdown(table, "mnist", measured).splitlines()
    line = next(line for line in lines if line.startswith("| private cnn, noise 0.1 "))
    assert "| 95.0 at noise 0.1, no epsilon published | 1,109 | 0.1 | not run |" in line


def test_runs_of_a_row_are_put_together(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(ROW, tmp_path, seed)
    measured = measure(ROW, (0, 1, 2), tmp_path)
    accuracy = measured.metric("test_accuracy")
    assert accuracy is not None and accuracy.deviation is not None
    assert len(measured.runs) == 2
    assert measured.epsilon is None


def test_a_kept_run_and_its_table_say_at_which_commit_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tables.kept.this_commit", lambda: "abc1234")
    place = run(ROW, tmp_path)
    assert json.loads(place.finished.read_text())["commit"] == "abc1234"
    text = markdown(find("seed0"), "digits", [measure(ROW, [0], tmp_path)])
    assert "Measured at `abc1234`." in text


def test_rows_kept_with_the_project_say_where_they_come_from_and_what_was_spent() -> None:
    paths = [
        p for p in (SCRIPTS.parent / "docs" / "rows").glob("*/*.json") if ".release" not in p.name
    ]
    assert paths
    for path in paths:
        told = json.loads(path.read_text())
        assert told["commit"] and "dirty" not in told["commit"], path.name
        if told["spec"]["epsilon"] is not None:
            assert 0 < told["epsilon"] <= told["spec"]["epsilon"] * (1 + 1e-9), path.name


def test_long_rows_have_to_be_asked_for() -> None:
    rows = find("seed0").rows("mnist")
    assert all(row.noise_multiplier is None for row in chosen(rows, "budget", None))
    assert len(chosen(rows, "noise", "noise 0.1$")) == 3
    with pytest.raises(BadInput, match="no row of group 'budget' matches"):
        chosen(rows, "budget", "noise 0.1")


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_every_table_has_settings_its_method_takes(name: str) -> None:
    for dataset in find(name).datasets:
        rows = find(name).rows(dataset)
        assert len({row.label for row in rows}) == len(rows)
        for row in rows:
            check(row.spec(0))


def test_the_published_row_of_dp2_vae_stands_beside_one_row_of_ours() -> None:
    rows = [row for row in find("dp2vae").rows("mnist") if row.published]
    assert [row.label for row in rows] == ["poisson, ephemeral, epsilon 10"]
    assert str(rows[0].published) == "81.2 (LR 78.4, MLP 77.8, FID 134.3), epsilon 10"
    states = {row.settings.get("encoder_state") for row in find("dp2vae").rows("mnist")}
    assert states == {None, "frozen", "scheduled", "selected"}


def test_files_kept_before_a_table_had_other_columns_are_still_read(tmp_path: Path) -> None:
    row = next(r for r in find("dp2vae").rows("mnist") if r.label.startswith("poisson, ephemeral"))
    name = "poisson-ephemeral-epsilon-10-seed0-bc685a957dc5.json"
    assert Place(row, 0, tmp_path).finished.name == name
    value = {
        "label": row.label,
        "run_id": "of-then",
        "settings": {"sampling": "poisson"},
        "epsilon": 9.99,
        "noise_multiplier": 1.72,
        "metrics": {"test_accuracy": 0.84, "lr_accuracy": 0.8, "domain_fid": 821.8},
        "resumed": False,
    }
    (tmp_path / name).write_text(json.dumps(value))
    text = markdown(find("dp2vae"), "mnist", [measure(row, (0,), tmp_path)])
    assert "| 9.99 | 1.72 | 84.00 | 80.00 | - | 821.8 | - | 1 |" in text
