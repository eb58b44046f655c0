"""Puts a release into the model registry: recipe, safetensors weights, signature, privacy tags.

Only a `Release` can be registered: encoders, teachers and latents are not of that type, and are
refused for it. The model is saved from the object itself, so no file beside it comes along.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpray import __version__
from dpray.contract import Release
from dpray.data.words import dataset_name
from dpray.errors import NotPrivate
from dpray.privacy.card import Card
from dpray.tracking.pyfunc import signature_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOADER = "dpray.tracking.pyfunc"
PREFIX = "dpray-"
_NEEDED_TO_LOAD = ("mlflow", "torch", "safetensors", "numpy")


def model_name(dataset: str, method: str) -> str:
    return f"{PREFIX}{dataset_name(dataset)}-{method}"


def refuse_other_types(release: object) -> None:
    if not isinstance(release, Release):
        raise NotPrivate(
            f"a {type(release).__name__} is not a Release and cannot be registered: only what "
            "came out of paid, noisy queries leaves the private side"
        )


def version_tags(
    release: Release, card: Card, *, dataset: str, accuracy: float | None
) -> dict[str, str]:
    """What a version can be found by. `load` and `promote` trust the card, not these."""
    tags = {
        "epsilon": repr(math.inf if card.epsilon is None else card.epsilon),
        "delta": repr(card.delta),
        "adjacency": card.adjacency,
        "fit_for_release": "true" if card.fit_for_release else "false",
        "method": card.method,
        "dataset": dataset_name(dataset),
        "run_id": card.run_id,
        "kind": release.kind,
        "covers": card.covers,
    }
    return tags if accuracy is None else {**tags, "accuracy": repr(accuracy)}


def register(
    release: Release,
    *,
    client: MlflowClient,
    mlflow_run: str,
    name: str,
    tags: dict[str, str],
) -> int:
    """Uploads the model and makes a version of it. The tags are there from the first moment on."""
    refuse_other_types(release)
    experiment = client.get_run(mlflow_run).info.experiment_id
    logged = client.create_logged_model(
        experiment, name=name, source_run_id=mlflow_run, model_type=release.kind
    )
    try:
        with TemporaryDirectory() as folder:
            _save(release, Path(folder), logged.model_id, mlflow_run)
            client.log_model_artifacts(logged.model_id, str(Path(folder) / "model"))
    except BaseException:
        with suppress(Exception):  # the first error is the one to see
            client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    _link_to_run(client, mlflow_run, logged.model_id)
    _make_name(client, name)
    made = client.create_model_version(
        name,
        # Not `models:/<id>`: MLflow would look that up in the process's store, not the client's.
        source=logged.artifact_location,
        run_id=mlflow_run,
        tags=tags,
        model_id=logged.model_id,
    )
    return int(made.version)


def _save(release: Release, folder: Path, model_id: str, mlflow_run: str) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model

    release.save(folder / "release")
    with warnings.catch_warnings():
        # It misses an input example; ours would be somebody's image.
        warnings.filterwarnings("ignore", message=".*input example")
        mlflow.pyfunc.save_model(
            folder / "model",
            loader_module=LOADER,
            data_path=str(folder / "release"),
            mlflow_model=Model(model_uuid=model_id, run_id=mlflow_run, model_id=model_id),
            signature=signature_of(release),
            # Given, so that MLflow does not load and run the model to find out.
            pip_requirements=_requirements(),
        )


def _requirements() -> list[str]:
    """The versions the model was saved with, without build labels such as `+cpu`."""
    pins = [f"{name}=={version(name).partition('+')[0]}" for name in _NEEDED_TO_LOAD]
    return [f"dpray=={__version__}", *pins]


def _link_to_run(client: Any, mlflow_run: str, model_id: str) -> None:
    from mlflow.entities import LoggedModelOutput

    client.log_outputs(mlflow_run, models=[LoggedModelOutput(model_id, step=0)])


def _make_name(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
