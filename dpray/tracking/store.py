"""The MLflow store: where it is, a client for it, and the check that comes before training.

MLFLOW_TRACKING_URI names it; without that it is an SQLite file in dpray's home. Clients are
made with explicit addresses: MLflow's process-wide settings are left as the caller has them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpray.data.folders import home
from dpray.errors import TrackingFailed
from dpray.tracking.quiet import quiet_mlflow
from dpray.tracking.reach import clear_failure, one_attempt, shown, sqlite_file, try_database

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_EXPERIMENT = "dpray"


def tracking_uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow' / 'mlflow.db'}"


def registry_uri() -> str:
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking_uri()


def shown_uri() -> str:
    """The store's address as it may be printed."""
    return shown(tracking_uri())


def connect() -> MlflowClient:
    """A client for the store, which has answered once. Makes a new SQLite store's tables."""
    uri = tracking_uri()
    with clear_failure(uri, "reach"), one_attempt():
        mlflow = quiet_mlflow()
        # Two processes that both find no tables would both make them: one at a time.
        with store_lock():
            try_database(uri)
            client: MlflowClient = mlflow.MlflowClient(
                tracking_uri=uri, registry_uri=registry_uri()
            )
            client.search_experiments(max_results=1)
    return client


def check_reachable() -> None:
    """Called before training: a store that cannot take the result stops the run here."""
    client = connect()
    with clear_failure(tracking_uri(), "write to"), one_attempt(), store_lock():
        experiment_id(client)
        if (folder := artifact_folder()) is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise TrackingFailed(f"the folder of MLflow artefacts {folder} cannot be written")


def artifact_folder() -> Path | None:
    """Beside the SQLite file; a server or another database has its own place for artefacts."""
    file = sqlite_file(tracking_uri())
    return None if file is None else file.parent / "artifacts"


def experiment_id(client: MlflowClient) -> str:
    """The experiment runs are recorded in, made where it does not exist yet."""
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT
    known = client.get_experiment_by_name(name)
    if known is None:
        folder = artifact_folder()
        try:
            return str(client.create_experiment(name, folder.as_uri() if folder else None))
        except MlflowException:
            # Somebody else may have made it meanwhile; anything else is a true failure.
            known = client.get_experiment_by_name(name)
            if known is None:
                raise
    if known.lifecycle_stage != "active":
        raise TrackingFailed(
            f"the MLflow experiment {name!r} was deleted: restore it with `mlflow experiments "
            f"restore -x {known.experiment_id}`, or set MLFLOW_EXPERIMENT_NAME to another"
        )
    return str(known.experiment_id)


@contextmanager
def store_lock() -> Iterator[None]:
    """One writer at a time on this machine: SQLite gives up on a lock after five seconds.

    Not re-entrant. Against a server it only keeps one run from being recorded twice at once.
    """
    file = sqlite_file(tracking_uri())
    path = file.with_name(f"{file.name}.lock") if file else home() / "mlflow" / "record.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
