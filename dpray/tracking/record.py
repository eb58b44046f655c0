"""`record(result)`: one MLflow run and one model version for a finished run.

What is uploaded is written from the result itself (spec, card, metrics, ledger), not copied
from the run's folder, so its private side cannot come along. A run that is recorded twice is
recorded once; one that broke half-way is marked as failed and is taken up again.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpray import __version__
from dpray.data.folders import home
from dpray.errors import BadInput, NotPrivate
from dpray.execute import Result, check
from dpray.spec import RunSpec
from dpray.tracking.metrics import accuracy, log_metrics, loggable
from dpray.tracking.reach import clear_failure
from dpray.tracking.register import model_name, refuse_other_types, register, version_tags
from dpray.tracking.store import connect, experiment_id, store_lock, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_TAG = "dpray.run_id"
SEARCH_TAG = "dpray.search_id"
PARENT_TAG = "mlflow.parentRunId"  # MLflow shows a run with this tag below the one it names
LONGEST_PARAM = 6000  # MLflow refuses longer ones


def record(
    result: Result, *, extra_artifacts: Sequence[Path] = (), parent: str | None = None
) -> str:
    """Records a result and registers its release. Returns `models:/<name>/<version>`.

    `parent` is the MLflow run of the search that chose it, where there was one.
    """
    refuse_unfit(result, extra_artifacts)
    client = connect()
    with clear_failure(tracking_uri(), "write to"), store_lock():
        return write_run(client, result, extra_artifacts, parent)


def refuse_unfit(result: Result, extra_artifacts: Sequence[Path] = ()) -> None:
    """All refusals, to come first: nothing has left when one of them speaks."""
    refuse_other_types(result.release)
    loggable(result.metrics)
    for path in (*extra_artifacts, *_pictures(result)):
        refuse_private(path, result)


def write_run(
    client: MlflowClient,
    result: Result,
    extra_artifacts: Sequence[Path] = (),
    parent: str | None = None,
) -> str:
    """As `record`, for a caller that holds the lock of the store and has heard the refusals."""
    name = model_name(result.spec.dataset, result.spec.method)
    tags = version_tags(
        result.release,
        result.card,
        dataset=result.spec.dataset,
        accuracy=accuracy(result.metrics),
    )
    run = _open_run(client, result, parent)
    number = _version_of(client, name, run.info.run_id)
    if number is None or run.info.status != "FINISHED":
        with marked_if_broken(client, run.info.run_id):
            _log(client, run.info.run_id, result, extra_artifacts)
            number = number or register(
                result.release,
                client=client,
                mlflow_run=run.info.run_id,
                name=name,
                tags=tags,
            )
    return f"models:/{name}/{number}"


def _open_run(client: MlflowClient, result: Result, parent: str | None) -> Any:
    """The MLflow run of this result: the one that is there, or a new one."""
    experiment = experiment_id(client)
    found = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{result.run_id}'", max_results=1)
    below = {} if parent is None else _tags_below(client, parent)
    if found:
        for name, value in below.items():
            if found[0].data.tags.get(name) != value:
                client.set_tag(found[0].info.run_id, name, value)
        return found[0]
    tags = {RUN_TAG: result.run_id, "dpray.version": __version__, **below}
    return client.create_run(experiment, run_name=result.run_id, tags=tags)


def _tags_below(client: MlflowClient, parent: str) -> dict[str, str]:
    search_id = client.get_run(parent).data.tags.get(SEARCH_TAG)
    if search_id is None:
        raise BadInput(f"the MLflow run {parent} is not that of a search: its parent must be one")
    return {PARENT_TAG: parent, SEARCH_TAG: search_id}


def _version_of(client: MlflowClient, name: str, mlflow_run: str) -> int | None:
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{mlflow_run}'")
    return int(versions[0].version) if versions else None


@contextmanager
def marked_if_broken(client: MlflowClient, mlflow_run: str) -> Iterator[None]:
    """FINISHED after the block; KILLED or FAILED where it was left in another way."""
    client.update_run(mlflow_run, status="RUNNING")
    try:
        yield
        client.set_terminated(mlflow_run, "FINISHED")
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        with suppress(Exception):  # the store may be what broke; the first error is the one to see
            client.set_terminated(mlflow_run, status)
        raise


def _log(client: MlflowClient, mlflow_run: str, result: Result, extra: Sequence[Path]) -> None:
    from mlflow.entities import Param

    params = [Param(name, value) for name, value in _params(result.spec).items()]
    client.log_batch(mlflow_run, params=params)
    log_metrics(client, mlflow_run, result.metrics)
    with TemporaryDirectory() as folder:
        _write_artifacts(result, extra, Path(folder))
        client.log_artifacts(mlflow_run, folder)


def _params(spec: RunSpec) -> dict[str, str]:
    """Fields of the specification and, by their own names, the settings the method ran with."""
    fields = spec.to_json()
    given = fields.pop("settings")
    try:
        # Defaults too: runs are compared by what they did, not by what was typed.
        settings = dataclasses.asdict(check(spec))  # type: ignore[call-overload]
    except BadInput:
        settings = given
    clashes = {f"settings.{n}" if n in fields else n: v for n, v in settings.items()}
    return {name: str(value)[:LONGEST_PARAM] for name, value in {**fields, **clashes}.items()}


def _write_artifacts(result: Result, extra: Sequence[Path], folder: Path) -> None:
    metrics = [[m.name, m.value, m.source.value] for m in result.metrics]
    write_json(folder / "spec.json", result.spec.to_json())
    told = {"run_id": result.run_id, "kind": result.release.kind, "metrics": metrics}
    write_json(folder / "result.json", told)
    write_json(folder / "ledger.json", dict(result.card.ledger))
    result.card.write(folder)
    for path in _pictures(result):
        shutil.copyfile(path, folder / path.name)
    for path in extra:
        (folder / "extra").mkdir(exist_ok=True)
        shutil.copyfile(path, folder / "extra" / path.name)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _pictures(result: Result) -> list[Path]:
    return [path for path in (result.folder.picture, result.folder.samples) if path.exists()]


def refuse_private(path: Path, result: Result | None = None) -> None:
    """Only files from outside the private side of any run or search; links are followed first."""
    true_path = path.resolve()
    if not true_path.is_file():
        raise BadInput(f"{path} is not a file and cannot be recorded")
    if result is not None and true_path.is_relative_to(result.folder.private.resolve()):
        raise NotPrivate(f"{path} lies on the private side of the run and cannot be recorded")
    kept = home().resolve()
    if true_path.is_relative_to(kept) and "private" in true_path.relative_to(kept).parts:
        raise NotPrivate(f"{path} lies on the private side of a run and cannot be recorded")
