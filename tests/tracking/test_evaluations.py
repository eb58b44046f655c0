"""Evaluations beside what a run recorded of itself: added, never replacing, never private."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpray import __version__
from dpray.cli import main
from dpray.errors import NotPrivate
from dpray.evaluation.metrics import Metric, Source
from dpray.execute import write_result
from dpray.tracking import record
from dpray.tracking.evaluations import (
    Evaluation,
    record_evaluation,
    recorded_as,
    split_by_source,
)
from dpray.tracking.history import history
from dpray.tracking.registry import find
from dpray.tracking.store import connect

NAME = "dpray-mnist-dp-sgd"
ACCURACY = Metric("test_accuracy", 0.75, Source.PUBLIC_TEST)
PRIVATE = Metric("domain_fid", 3.0, Source.PRIVATE)


def evaluation(*metrics: Metric, **words) -> Evaluation:
    given = {"subject": NAME, "dataset": "mnist", "suite": "quick", "reference": "test", **words}
    return Evaluation(metrics=metrics or (ACCURACY,), **given)


def stored(row) -> tuple[dict[str, float], list[str]]:
    """The metrics of the model's MLflow run, and the names of its evaluation files."""
    client = connect()
    files = [file.path for file in client.list_artifacts(row.mlflow_run, "evaluations")]
    return client.get_run(row.mlflow_run).data.metrics, files


def test_an_evaluation_is_added_and_what_the_run_recorded_stays(store, make_result):
    record(make_result(accuracy=0.5))
    row = find(NAME)
    before, _ = stored(row)
    artifact = record_evaluation(row, evaluation())
    metrics, files = stored(row)
    assert metrics == {**before, "evaluate/mnist/quick/test_accuracy": 0.75}
    assert metrics["test_accuracy"] == 0.5 and find(NAME).accuracy == 0.5
    assert files == [artifact]


def test_the_file_says_sources_settings_and_version(store, make_result, tmp_path):
    record(make_result())
    row = find(NAME)
    artifact = record_evaluation(row, evaluation(runs=3, count=100, seed=4, notes=("a note",)))
    path = connect().download_artifacts(row.mlflow_run, artifact, str(tmp_path))
    assert json.loads(Path(path).read_text()) == {
        **{"subject": NAME, "model": f"{NAME}/1", "dataset": "mnist", "reference": "test"},
        **{"suite": "quick", "runs": 3, "count": 100, "seed": 4, "notes": ["a note"]},
        "metrics": [{"name": "test_accuracy", "value": 0.75, "source": "public test set"}],
        "dpray": __version__,
    }


def test_a_second_evaluation_is_kept_beside_the_first(store, make_result):
    record(make_result())
    row = find(NAME)
    record_evaluation(row, evaluation())
    record_evaluation(row, evaluation(replace(ACCURACY, value=0.8)))
    key = "evaluate/mnist/quick/test_accuracy"
    values = [one.value for one in connect().get_metric_history(row.mlflow_run, key)]
    assert sorted(values) == [0.75, 0.8] and len(stored(row)[1]) == 2


def test_another_dataset_and_a_classifier_are_named_apart(store, make_result):
    record(make_result())
    row = find(NAME)
    record_evaluation(row, evaluation(dataset="my images", suite=None))
    assert stored(row)[0]["evaluate/my-images/test_accuracy"] == 0.75


def test_one_private_metric_stops_all_of_it_before_anything_is_sent(store, make_result):
    record(make_result())
    row = find(NAME)
    before = stored(row)
    with pytest.raises(NotPrivate, match="'domain_fid' has the source 'private'"):
        record_evaluation(row, evaluation(ACCURACY, PRIVATE))
    assert stored(row) == before
    assert split_by_source([PRIVATE, ACCURACY]) == ((ACCURACY,), (PRIVATE,))


def test_a_run_is_found_by_its_id_where_it_was_recorded(store, make_result):
    record(make_result("run-1"))
    record(make_result("run-2"))
    row = recorded_as("run-1")
    assert row is not None and row.reference == f"{NAME}/1"
    assert recorded_as("run-3") is None


def test_history_shows_what_runs_measured_of_themselves(store, make_result):
    record(make_result())
    record_evaluation(find(NAME), evaluation())
    (run,) = history()
    assert set(run.metrics) == {"test_accuracy", "epsilon"}


@pytest.fixture
def pets(tmp_path) -> str:
    """Twelve images that fit the classifier of these tests, six of them declared as a test set."""
    images, labels = np.random.default_rng(0).random((12, 4, 4)), np.arange(12) % 3
    names = ["cat", "dog", "hen"]
    arrays = {"images": images, "labels": labels, "class_names": names}
    np.savez(tmp_path / "pets.npz", **arrays, test_images=images[:6], test_labels=labels[:6])
    return str(tmp_path / "pets.npz")


def test_the_command_records_with_a_registered_model_unless_told_not_to(
    store, make_result, pets, capsys
):
    record(make_result())
    words = ["evaluate", NAME, "--dataset", pets, "--json"]
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["recorded"] is True and value["subject"] == f"{NAME}/1"
    [metric] = value["metrics"]
    assert stored(find(NAME))[0]["evaluate/pets/test_accuracy"] == metric["value"]
    assert main([*words, "--no-tracking"]) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is False
    assert len(stored(find(NAME))[1]) == 1


def test_a_run_id_records_with_its_model_or_says_that_there_is_none(
    store, make_result, pets, capsys
):
    result = make_result("run-1")
    write_result(result)
    words = ["evaluate", "run-1", "--dataset", pets, "--json"]
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["recorded"] is False and "not in the model registry" in value["notes"][-1]
    record(result)
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is True
    assert "evaluate/pets/test_accuracy" in stored(find(NAME))[0]


def test_what_was_measured_is_shown_also_where_it_cannot_be_recorded(
    store, make_result, pets, capsys
):
    record(make_result())
    client = connect()
    client.delete_run(find(NAME).mlflow_run)
    assert main(["evaluate", NAME, "--dataset", pets, "--json", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["metrics"] and json.loads(out)["recorded"] is False
    assert err.startswith("dpray: cannot write to the MLflow store") and err.count("\n") == 1


def test_a_store_out_of_reach_stops_a_run_before_anything_is_measured(
    own_home, make_result, pets, monkeypatch, capsys
):
    write_result(make_result("run-1"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    words = ["evaluate", "run-1", "--dataset", pets, "--quiet"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and "cannot reach the MLflow store" in err
    assert main([*words, "--no-tracking"]) == 0
