"""A real `mlflow server`, as on a cluster: four workers record and register at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

from dpray.tracking.registry import list_models
from dpray.tracking.store import connect

# One process loads all that takes seconds to load, and leaves four workers that record at once.
RECORD = """
import multiprocessing
import mlflow, mlflow.pyfunc
from conftest import _make_result
from dpray import tracking

def work(worker):
    for number in range(2):
        print(tracking.record(_make_result(f"run-{worker}-{number}", accuracy=0.5)), flush=True)

workers = [multiprocessing.get_context("fork").Process(target=work, args=(n,)) for n in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print([worker.exitcode for worker in workers])
"""


@pytest.fixture
def server(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    port, folder = free_port(), tmp_path / "server"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(tables.read_bytes())
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
            *("--port", str(port), "--workers", "2"),
            *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    uri = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(uri, process)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(uri: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended by itself"
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError("the server did not answer within two minutes")


def test_four_workers_record_and_register_at_once_and_nothing_is_lost(server: str):
    done = subprocess.run(
        [sys.executable, "-c", RECORD],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    *said, codes = done.stdout.splitlines()
    assert codes == "[0, 0, 0, 0]"
    assert set(said) == {f"models:/dpray-mnist-dp-sgd/{version}" for version in range(1, 9)}
    rows = list_models()
    assert len({row.run_id for row in rows}) == len(rows) == 8
    client = connect()
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments)
    assert sorted(run.info.status for run in runs) == ["FINISHED"] * 8
    assert all(run.data.metrics["test_accuracy"] == 0.5 for run in runs)
