"""What a finished search leaves in MLflow: all of its trials, or nothing of any but the best."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dpray.errors import BadInput, NotPrivate, TrackingFailed
from dpray.evaluation.metrics import Metric, Source
from dpray.execute import Result
from dpray.search.cost import SearchCost
from dpray.search.journal import WORST, Finished
from dpray.search.outcome import SearchOutcome
from dpray.search.space import choice, log_uniform, uniform, whole
from dpray.search.trials import SearchSpec
from dpray.spec import RunSpec
from dpray.tracking import record, record_search
from dpray.tracking.record import PARENT_TAG, RUN_TAG, SEARCH_TAG
from dpray.tracking.searches import TRIAL_TAG, space_text
from dpray.tracking.store import connect, experiment_id

SPACE = {"lr": log_uniform(0.1, 10.0), "batch_size": choice(512, 1024)}
TRIALS = (
    Finished(0, {"lr": 0.512345, "batch_size": 512}, "run-0", 0.6789),
    Finished(1, {"lr": 2.0, "batch_size": 1024}, "run-1", 0.9),
    Finished(2, {"lr": 9.0, "batch_size": 512}, "run-2", WORST),
    Finished(3, {"lr": 0.1, "batch_size": 512}, "run-3", 0.95, stopped=True),
)


@pytest.fixture
def make_outcome(make_result: Callable[..., Result]) -> Callable[..., SearchOutcome]:
    def make(charge: str = "compose", **changes) -> SearchOutcome:
        search = SearchSpec(
            method="dp-sgd",
            dataset="mnist",
            charge=charge,
            trials=4,
            epsilon=1.0,
            space=SPACE,
            settings={"momentum": 0.5},
        )
        cost = SearchCost(
            how=charge, epsilon=2.5, delta=1e-5, bound="pld", covers="the run and the search"
        )
        best = make_result("search-1")
        score = Metric("search_score", 0.9, Source.NOISY_HOLD_OUT)
        best = replace(best, metrics=(*best.metrics, score))
        trials = () if charge == "select" else TRIALS
        return replace(SearchOutcome("search-1", search, cost, trials, best), **changes)

    return make


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SearchOutcome]]:
    return tmp_path_factory.mktemp("shared"), []


@pytest.fixture
def recorded(
    shared, tables: Path, own_home: Path, make_outcome, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SearchOutcome]:
    """A search with all its trials, recorded once for all the tests that only read it."""
    home, done = shared
    with monkeypatch.context() as patch:
        patch.setenv("DPRAY_HOME", str(home))
        if not done:
            (home / "mlflow").mkdir()
            shutil.copy(tables, home / "mlflow")
            (home / "parallel.png").write_bytes(b"a picture")
            done.append(make_outcome())
            record_search(done[0], plots=[home / "parallel.png"])
        yield done[0]


def parent_and_children():
    client = connect()
    runs = client.search_runs([experiment_id(client)])
    (parent,) = [run for run in runs if PARENT_TAG not in run.data.tags]
    children = [run for run in runs if run.data.tags.get(PARENT_TAG) == parent.info.run_id]
    assert len(children) == len(runs) - 1
    return parent, children


def artifacts_of(run) -> Path:
    return Path(connect().download_artifacts(run.info.run_id, ""))


def files_of(run) -> set[str]:
    return {path.name for path in artifacts_of(run).iterdir()}


def test_a_search_is_one_run_with_its_space_its_cost_and_its_best_score(recorded):
    parent, _ = parent_and_children()
    data = parent.data
    assert parent.info.run_name == "search-1" and data.tags[SEARCH_TAG] == "search-1"
    assert parent.info.status == "FINISHED" and RUN_TAG not in data.tags
    assert data.params["space.lr"] == "log_uniform(0.1, 10)"
    assert data.params["space.batch_size"] == "choice(512, 1024)"
    assert data.params["settings.momentum"] == "0.5" and data.params["trials"] == "4"
    assert data.params["adjacency"] == "add-or-remove-one"
    # A trial that was stopped has no release, so it is not the best, whatever its score.
    assert data.metrics == {"search_epsilon": 2.5, "search_delta": 1e-5, "best_score": 0.9}
    tags = {name: data.tags[name] for name in ("charge", "method", "dataset", "fit_for_release")}
    assert list(tags.values()) == ["compose", "dp-sgd", "mnist", "true"]
    assert data.tags["covers"] == "the run and the search"


def test_every_trial_is_a_run_below_the_search(recorded):
    _, children = parent_and_children()
    trials = {r.info.run_name: r for r in children if TRIAL_TAG in r.data.tags}
    assert sorted(trials) == [f"search-1-trial-{number:03d}" for number in range(4)]
    first, failed = trials["search-1-trial-000"], trials["search-1-trial-002"]
    assert first.data.params == {"lr": "0.512345", "batch_size": "512"}
    assert first.data.metrics == {"score": 0.6789} and first.info.status == "FINISHED"
    assert failed.data.metrics == {} and failed.info.status == "FAILED"
    outcomes = [trials[name].data.tags["outcome"] for name in sorted(trials)]
    assert outcomes == ["ended", "ended", "failed", "stopped"]


def test_the_best_is_a_run_below_the_search_with_the_only_model(recorded):
    _, children = parent_and_children()
    (best,) = [run for run in children if RUN_TAG in run.data.tags]
    assert best.data.tags[SEARCH_TAG] == "search-1" and best.data.metrics["test_accuracy"] == 0.5
    (version,) = connect().search_model_versions("name = 'dpray-mnist-dp-sgd'")
    assert version.run_id == best.info.run_id


def test_the_files_of_a_search_can_be_read_again(recorded):
    folder = artifacts_of(parent_and_children()[0])
    assert SearchSpec.read(folder / "search.json") == recorded.search
    assert RunSpec.read(folder / "best.json") == recorded.best.spec
    assert json.loads((folder / "cost.json").read_text())["epsilon"] == 2.5
    assert (folder / "parallel.png").read_bytes() == b"a picture"
    with open(folder / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[1] == {
        **{"number": "1", "score": "0.9", "outcome": "ended"},
        **{"lr": "2.0", "batch_size": "1024"},
    }
    assert rows[2]["score"] == "" and rows[3]["outcome"] == "stopped"


def test_select_leaves_the_search_and_its_winner_and_nothing_else(store, make_outcome):
    outcome = make_outcome("select")
    assert record_search(outcome) == "models:/dpray-mnist-dp-sgd/1"
    parent, (winner,) = parent_and_children()
    # All there is, by name: whatever is added has to be looked at here.
    assert set(parent.data.params) == {
        *(outcome.search.to_json().keys() - {"space", "settings"}),
        *("space.lr", "space.batch_size", "settings.momentum"),
    }
    assert set(parent.data.metrics) == {"search_epsilon", "search_delta", "best_score"}
    assert set(winner.data.metrics) == {"test_accuracy", "epsilon", "search_score"}
    named = {"dpray.version", SEARCH_TAG, "mlflow.runName"}
    described = {"charge", "method", "dataset", "covers", "fit_for_release"}
    assert set(parent.data.tags) == named | described
    assert set(winner.data.tags) == named | {RUN_TAG, PARENT_TAG}
    assert files_of(parent) == {"search.json", "cost.json", "best.json"}
    assert files_of(winner) == {
        *("spec.json", "card.json", "card.txt", "result.json", "ledger.json"),
    }


def test_a_scan_of_the_store_finds_a_trial_and_with_select_none(
    store, own_home: Path, make_outcome, request: pytest.FixtureRequest
):
    record_search(make_outcome("select"))
    marks = ("0.512345", "0.6789", "trial-000", TRIAL_TAG, "stopped")
    assert [mark for mark in marks if mark in all_text_in(own_home)] == []
    request.getfixturevalue("recorded")  # the same look where there is something to be found
    home, _ = request.getfixturevalue("shared")
    assert [mark for mark in marks if mark in all_text_in(home)] == list(marks)


def all_text_in(home: Path) -> str:
    """Every text and every number in every table, and every artefact that is text."""
    with closing(sqlite3.connect(home / "mlflow" / "mlflow.db")) as file:
        tables = file.execute("select name from sqlite_master where type = 'table'").fetchall()
        rows = [str(row) for (name,) in tables for row in file.execute(f'select * from "{name}"')]
    paths = [path for path in (home / "mlflow" / "artifacts").rglob("*") if path.is_file()]
    return "\n".join([*rows, *(path.read_text(errors="ignore") for path in paths)])


def test_what_would_tell_of_secret_trials_is_refused_before_anything_is_written(
    store, tmp_path: Path, make_outcome, make_result
):
    (tmp_path / "plot.png").write_bytes(b"")
    outcome = make_outcome("select")
    seconds = Metric("core_seconds", 12.0, Source.COST)
    timed = replace(outcome.best, metrics=(*outcome.best.metrics, seconds))
    for refused, plots in (
        (replace(outcome, trials=TRIALS), []),
        (outcome, [tmp_path / "plot.png"]),
        (replace(outcome, best=timed), []),
        (replace(outcome, best=make_result("search-1-trial-072")), []),
    ):
        with pytest.raises(NotPrivate, match="its best trial alone"):
            record_search(refused, plots=plots)
    client = connect()
    assert client.search_runs([experiment_id(client)]) == []


def test_recording_a_search_twice_records_it_once(recorded):
    assert record_search(recorded) == "models:/dpray-mnist-dp-sgd/1"
    _, children = parent_and_children()
    assert len(children) == len(TRIALS) + 1
    assert len(connect().search_model_versions("name = 'dpray-mnist-dp-sgd'")) == 1


def test_a_search_that_was_half_recorded_is_taken_up_again(
    store, make_outcome, monkeypatch: pytest.MonkeyPatch
):
    from dpray.tracking import searches

    def broken(client, mlflow_run, trial, source) -> None:
        if trial.number == 2:
            raise OSError("the network went away")
        whole_trial(client, mlflow_run, trial, source)

    outcome, whole_trial = make_outcome(), searches._log_trial
    with monkeypatch.context() as patch:
        patch.setattr(searches, "_log_trial", broken)
        with pytest.raises(TrackingFailed, match="the network went away"):
            record_search(outcome)
    parent, children = parent_and_children()
    assert parent.info.status == "FAILED" and len(children) == 3
    record_search(outcome)
    parent, children = parent_and_children()
    assert parent.info.status == "FINISHED" and len(children) == len(TRIALS) + 1
    assert not [run for run in children if run.info.status == "RUNNING"]


def test_a_search_without_a_best_has_no_model_and_no_best_score(store, make_outcome):
    failed = tuple(replace(trial, score=WORST, stopped=False) for trial in TRIALS)
    assert record_search(make_outcome(trials=failed, best=None)) is None
    parent, children = parent_and_children()
    assert "best_score" not in parent.data.metrics and len(children) == len(TRIALS)
    assert files_of(parent) == {"search.json", "cost.json", "trials.csv"}


def test_a_search_that_nobody_paid_for_has_no_epsilon_and_is_not_fit(store, make_outcome):
    cost = SearchCost(
        how="none",
        epsilon=float("inf"),
        delta=1e-5,
        bound=None,
        covers="this run, but not the search",
        reason="nobody paid",
    )
    record_search(make_outcome("none", cost=cost, best=None, trials=TRIALS[:1]))
    parent, _ = parent_and_children()
    assert "search_epsilon" not in parent.data.metrics
    assert parent.data.tags["fit_for_release"] == "false"


def test_a_plot_from_the_private_side_of_a_search_is_refused(store, own_home: Path, make_outcome):
    secret = own_home / "searches" / "search-1" / "private" / "journal.jsonl"
    secret.parent.mkdir(parents=True)
    secret.write_text("all trials")
    with pytest.raises(NotPrivate, match="private side"):
        record_search(make_outcome(), plots=[secret])


def test_a_run_that_was_recorded_before_its_search_moves_below_it(store, make_outcome):
    outcome = make_outcome(trials=TRIALS[:1])
    record(outcome.best)
    record_search(outcome)
    _, children = parent_and_children()
    assert {run.info.run_name for run in children} == {"search-1", "search-1-trial-000"}


def test_only_a_search_can_be_the_parent_of_a_run(store, make_result):
    record(make_result("run-1"))
    client = connect()
    (run,) = client.search_runs([experiment_id(client)])
    with pytest.raises(BadInput, match="not that of a search"):
        record(make_result("run-2"), parent=run.info.run_id)


@pytest.mark.parametrize(
    ("dimension", "text"),
    [
        (uniform(0, 0.95), "uniform(0, 0.95)"),
        (log_uniform(1e-4, 10), "log_uniform(0.0001, 10)"),
        (whole(1, 2_000_000), "whole(1, 2000000)"),
        (whole(1, 9, log=True), "whole(1, 9, log=True)"),
        (choice("a", None, 3), "choice('a', None, 3)"),
    ],
)
def test_a_dimension_is_written_as_in_a_file_of_spaces(dimension, text):
    assert space_text(dimension) == text
    assert eval(text, {f.__name__: f for f in (uniform, log_uniform, whole, choice)}) == dimension
