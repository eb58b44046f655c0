"""Looking models up: list them, find one by what people type, read its card, load it.

A reference is NAME, NAME/VERSION or NAME@alias, with or without `models:/` in front. Without a
version it is the one called `best` or `champion`, or else the latest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from dpray.contract import Release, load_release
from dpray.data.words import dataset_name
from dpray.errors import BadInput, NotPrivate, TrackingFailed, unknown
from dpray.privacy.card import Card, verify
from dpray.tracking.reach import clear_failure
from dpray.tracking.register import LOADER, PREFIX
from dpray.tracking.store import connect, shown_uri, store_lock, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

PREFERRED_ALIASES = ("best", "champion")
Sort = Literal["accuracy", "epsilon", "created"]


@dataclass(frozen=True)
class ModelRow:
    """One version of one model, as the registry's tags describe it."""

    name: str
    version: int
    aliases: tuple[str, ...]
    method: str
    dataset: str
    kind: str
    epsilon: float  # inf: no privacy
    delta: float
    adjacency: str
    covers: str
    accuracy: float | None
    fit_for_release: bool
    run_id: str
    created: datetime
    mlflow_run: str

    @property
    def reference(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def uri(self) -> str:
        return f"models:/{self.reference}"


_ORDER: dict[str, Any] = {
    "accuracy": lambda row: (row.accuracy is None, -(row.accuracy or 0), row.epsilon),
    "epsilon": lambda row: (row.epsilon, -(row.accuracy or 0)),
    "created": lambda row: -row.created.timestamp(),
}


def list_models(
    dataset: str | None = None,
    method: str | None = None,
    max_epsilon: float | None = None,
    sort: Sort = "accuracy",
    fit_only: bool = False,
) -> list[ModelRow]:
    """Versions that match, best first: most accurate, least epsilon, or newest."""
    if sort not in _ORDER:
        raise unknown("order", sort, _ORDER)
    client = connect()
    with clear_failure(tracking_uri(), "read"):
        rows = _rows(client, f"name LIKE '{PREFIX}%'", _aliases(client))
    return sorted(
        (
            row
            for row in rows
            if (dataset is None or row.dataset == dataset_name(dataset))
            and (method is None or row.method == method)
            and (max_epsilon is None or row.epsilon <= max_epsilon)
            and (row.fit_for_release or not fit_only)
        ),
        key=_ORDER[sort],
    )


def find(reference: str) -> ModelRow:
    """The version a reference names, or an error that says which names there are."""
    name, version, alias = _parse(reference)
    client = connect()
    with clear_failure(tracking_uri(), "read"):
        aliases = _aliases(client)
        if not aliases:
            raise BadInput(f"no model {name!r}: no model is registered in {shown_uri()} yet")
        if name not in aliases:
            raise unknown("model", name, aliases)
        rows = {row.version: row for row in _rows(client, f"name = '{name}'", aliases)}
    if not rows:
        raise BadInput(f"model {name!r} has no versions left")
    if alias is not None:
        if alias not in aliases[name]:
            known = aliases[name] or {"none": 0}
            raise unknown(f"alias of {name}", alias, known)
        version = str(aliases[name][alias])
    if version is None:
        preferred = [aliases[name][a] for a in PREFERRED_ALIASES if a in aliases[name]]
        return rows[preferred[0] if preferred else max(rows)]
    if version == "latest":
        return rows[max(rows)]
    if not version.isdecimal() or int(version) not in rows:
        raise unknown(f"version of {name}", version, map(str, rows))
    return rows[int(version)]


def card_of(reference: str | ModelRow) -> Card:
    """The privacy card that was recorded with a model."""
    row = reference if isinstance(reference, ModelRow) else find(reference)
    client = connect()
    with clear_failure(tracking_uri(), "read"), TemporaryDirectory() as folder:
        path = client.download_artifacts(row.mlflow_run, "card.json", folder)
        card = Card.read(Path(path))
    if card.run_id != row.run_id:
        raise TrackingFailed(
            f"the card recorded with {row.reference} is that of run {card.run_id}, "
            f"and the model is of run {row.run_id}"
        )
    return card


def promote(reference: str, alias: str = "champion", *, force: bool = False) -> ModelRow:
    """Gives a version a name people can rely on. Its card must say it is fit for release."""
    row = find(reference)
    card = card_of(row)
    verify(card)  # what the card states must follow from its own events
    if not card.fit_for_release and not force:
        raise NotPrivate(
            f"{row.reference} is not fit for release ({'; '.join(card.reasons_against)}); "
            "if you must, add --force"
        )
    client = connect()
    with clear_failure(tracking_uri(), "write to"), store_lock():
        client.set_registered_model_alias(row.name, alias, str(row.version))
    return find(row.reference)


def load(reference: str) -> Release:
    """The release itself, rebuilt from its recipe and weights."""
    row = find(reference)
    client = connect()
    with clear_failure(tracking_uri(), "read"), TemporaryDirectory() as folder:
        from mlflow.artifacts import download_artifacts
        from mlflow.models import Model

        # Not `models:/...`: MLflow would look that up in the process's store, not the client's.
        place = client.get_model_version_download_uri(row.name, str(row.version))
        path = download_artifacts(artifact_uri=place, dst_path=folder, tracking_uri=tracking_uri())
        flavor = Model.load(path).flavors.get("python_function", {})
        if flavor.get("loader_module") != LOADER:
            raise BadInput(f"{row.reference} was not registered by dpray: it holds no release")
        return load_release(Path(path) / flavor["data"])


def _parse(reference: str) -> tuple[str, str | None, str | None]:
    """Name, version, alias; at most one of the last two."""
    text = reference.removeprefix("models:").strip("/")
    name, at, alias = text.partition("@")
    name, slash, version = name.partition("/")
    if not name or (at and (slash or not alias)) or (slash and not version):
        raise BadInput(f"{reference!r} is not of the form NAME, NAME/VERSION or NAME@alias")
    return name, version or None, alias or None


def _aliases(client: MlflowClient) -> dict[str, dict[str, int]]:
    """Every registered name of dpray's, with its aliases and the versions they point to."""
    models = _all_pages(client.search_registered_models, f"name LIKE '{PREFIX}%'")
    return {model.name: {a: int(v) for a, v in model.aliases.items()} for model in models}


def _rows(
    client: MlflowClient, where: str, aliases: dict[str, dict[str, int]]
) -> Iterable[ModelRow]:
    """A row a version. One without our tags was not registered by dpray and is left out."""
    for found in _all_pages(client.search_model_versions, where):
        tags, number = found.tags, int(found.version)
        if "epsilon" not in tags or "run_id" not in tags:
            continue
        names = aliases.get(found.name, {})
        yield ModelRow(
            name=found.name,
            version=number,
            aliases=tuple(sorted(alias for alias, v in names.items() if v == number)),
            method=tags.get("method", ""),
            dataset=tags.get("dataset", ""),
            kind=tags.get("kind", ""),
            epsilon=float(tags["epsilon"]),
            delta=float(tags.get("delta", math.nan)),
            adjacency=tags.get("adjacency", ""),
            covers=tags.get("covers", ""),
            accuracy=float(tags["accuracy"]) if "accuracy" in tags else None,
            fit_for_release=tags.get("fit_for_release") == "true",
            run_id=tags["run_id"],
            created=datetime.fromtimestamp(found.creation_timestamp / 1000, UTC),
            mlflow_run=found.run_id,
        )


def _all_pages(search: Any, where: str) -> Iterable[Any]:
    page = search(where)
    while page:
        yield from page
        page = search(where, page_token=page.token) if page.token else None
