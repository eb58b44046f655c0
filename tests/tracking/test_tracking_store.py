from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpray.api import run_spec
from dpray.errors import BadInput, TrackingFailed
from dpray.spec import RunSpec
from dpray.tracking import check_reachable
from dpray.tracking.reach import shown
from dpray.tracking.store import connect, experiment_id, tracking_uri

RECORD_ONE = """
import sys
sys.path.insert(0, sys.argv[1])
from conftest import _make_result
from dpray.tracking import record
print(record(_make_result(sys.argv[2])))
"""


def test_the_default_store_is_a_file_in_the_home_folder(own_home: Path, store: str):
    assert tracking_uri() == f"sqlite:///{own_home}/mlflow/mlflow.db"
    client = connect()
    place = client.get_experiment(experiment_id(client)).artifact_location
    assert place == (own_home / "mlflow" / "artifacts").as_uri()


def test_the_environment_names_store_and_experiment(tmp_path: Path, tables: Path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tables}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert tracking_uri() == f"sqlite:///{tables}"
    client = connect()
    assert client.get_experiment(experiment_id(client)).name == "mine"


def test_using_a_store_leaves_the_process_settings_of_mlflow_alone(store: str):
    import mlflow

    before = mlflow.get_tracking_uri()
    check_reachable()
    assert mlflow.get_tracking_uri() == before


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("http://me:s3cret@127.0.0.1:9", "connection refused"),
        ("postgresql://me:s3cret@127.0.0.1:9/mlflow", "connection refused"),
        ("gopher://me:s3cret@somewhere", "gopher"),
        ("sqlite://", "in memory"),
    ],
)
def test_an_unreachable_store_is_one_line_within_seconds(monkeypatch, uri: str, reason: str):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    started = time.monotonic()
    with pytest.raises(TrackingFailed, match=reason) as caught:
        check_reachable()
    assert time.monotonic() - started < 8
    assert "\n" not in str(caught.value) and "s3cret" not in str(caught.value)


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/file/mlflow.db")
    with pytest.raises(TrackingFailed, match="cannot be written"):
        check_reachable()


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path, monkeypatch):
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/letter.db")
    with pytest.raises(TrackingFailed, match="not an SQLite database"):
        check_reachable()


def test_a_deleted_experiment_is_refused_with_the_way_back(store: str):
    client = connect()
    client.delete_experiment(experiment_id(client))
    with pytest.raises(TrackingFailed, match="experiments restore"):
        check_reachable()


def test_a_dataset_that_is_none_is_refused_before_a_store_is_looked_for(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://somewhere")
    with pytest.raises(BadInput, match="did you mean 'mnist'"):
        run_spec(RunSpec(method="sgd", dataset="mnits:0,1"))


def test_a_shown_address_has_no_password():
    assert shown("https://me:pw@host:5000/a?token=x") == "https://host:5000/a"
    assert shown("postgresql+psycopg2://me:p%40w@host/db") == "postgresql+psycopg2://host/db"
    assert shown("sqlite:////home/me/mlflow.db") == "sqlite:////home/me/mlflow.db"


def test_two_processes_record_at_once_into_a_store_that_is_not_there_yet(own_home: Path):
    here = str(Path(__file__).parent)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RECORD_ONE, here, run_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for run_id in ("run-1", "run-2")
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    # Exactly the result on stdout, nothing of MLflow's on stderr.
    assert sorted(out for out, _ in outputs) == [
        "models:/dpray-mnist-dp-sgd/1\n",
        "models:/dpray-mnist-dp-sgd/2\n",
    ]
    assert [err for _, err in outputs] == ["", ""]
