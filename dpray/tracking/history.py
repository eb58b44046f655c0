"""`history()`: every run dpray has recorded in an experiment, read back from MLflow.

Only finished runs count, and only metrics whose source may be shown. A run whose record is not
whole is left out and named, so that one damaged file does not cost the others their page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpray.data.words import dataset_name
from dpray.errors import BadInput, DprayError, unknown
from dpray.evaluation.metrics import Source
from dpray.evaluation.recorded import RecordedRun
from dpray.privacy.card import Card
from dpray.privacy.ledger import ledger_from_json
from dpray.spec import RunSpec
from dpray.tracking.metrics import LOGGABLE
from dpray.tracking.reach import clear_failure
from dpray.tracking.record import RUN_TAG
from dpray.tracking.store import DEFAULT_EXPERIMENT, connect, shown_uri, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

# `public` is as much a choice as a setting: runs with other public data are no repeats.
_SPEC_FIELDS = frozenset(field.name for field in fields(RunSpec)) - {"public"}
# Where a picture of samples lies: beside the card, or among what was recorded in addition.
_SAMPLES = ("samples.png", "extra/samples.png")
_HOW = "make one with: dpray run dp-sgd --dataset mnist --epsilon 3"


def history(
    experiment: str | None = None,
    dataset: str | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> list[RecordedRun]:
    """Recorded runs, oldest first. Never empty: that there are none is an error that says so."""
    client = connect()
    with clear_failure(tracking_uri(), "read"):
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT
        known = {e.name: e.experiment_id for e in _all_pages(client.search_experiments)}
        if experiment is not None and name not in known:
            raise unknown("experiment", name, known)
        found = list(_finished(client, known[name])) if name in known else []
        if not found:
            raise BadInput(f"no finished run in experiment {name!r} of {shown_uri()}; {_HOW}")
        chosen = [run for run in found if _is_of(run, dataset)]
        if not chosen:
            raise unknown("recorded run of dataset", str(dataset), _datasets(found))
        runs = [run for entry in chosen if (run := _read(client, entry, say)) is not None]
    if not runs:
        raise BadInput(f"none of {len(chosen)} runs in experiment {name!r} can be read; {_HOW}")
    return sorted(runs, key=lambda run: run.started)


def _finished(client: MlflowClient, experiment_id: str) -> Iterable[Any]:
    found = _all_pages(
        lambda **page: client.search_runs([experiment_id], "status = 'FINISHED'", **page)
    )
    return (run for run in found if RUN_TAG in run.data.tags)


def _all_pages(search: Callable[..., Any]) -> Iterable[Any]:
    page = search()
    while page:
        yield from page
        page = search(page_token=page.token) if page.token else None


def _is_of(run: Any, dataset: str | None) -> bool:
    own = run.data.params.get("dataset", "")
    return dataset is None or dataset == own or dataset_name(dataset) == dataset_name(own)


def _datasets(runs: Iterable[Any]) -> set[str]:
    return {dataset_name(run.data.params.get("dataset", "")) for run in runs}


def _read(client: MlflowClient, run: Any, say: Callable[[str], None]) -> RecordedRun | None:
    """One run with its card and pictures, or None where its record is not whole."""
    run_id, params = run.data.tags[RUN_TAG], run.data.params
    try:
        with TemporaryDirectory() as folder:
            card = Card.read(_fetch(client, run, "card.json", folder))
            result = json.loads(_fetch(client, run, "result.json", folder).read_text())
            samples = _samples(client, run, folder)
        if card.run_id != run_id:
            raise BadInput(f"its card is that of run {card.run_id}")
        if ledger_from_json(dict(card.ledger)).head != card.ledger["head"]:
            raise BadInput("the ledger on its card does not lead to its head")
        sources = {name: Source(source) for name, _, source in result["metrics"]}
        return RecordedRun(
            run_id=run_id,
            method=params["method"],
            kind=result.get("kind") or _kind(sources, samples),
            dataset=params["dataset"],
            seed=int(params.get("seed", 0)),
            settings=_settings(params),
            # A metric that names no source, or a private one, is not shown.
            metrics={
                name: value
                for name, value in run.data.metrics.items()
                if sources.get(name) in LOGGABLE
            },
            noisy=frozenset(n for n, s in sources.items() if s is Source.NOISY_HOLD_OUT),
            card=card,
            started=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            samples=samples,
        )
    except (DprayError, OSError, KeyError, TypeError, ValueError) as error:
        # One line, whatever it was; no path of the store in it.
        reason = str(error) if isinstance(error, BadInput) else type(error).__name__
        say(f"warning: run {run_id} is left out, its record cannot be read: {reason}")
        return None


def _kind(metrics: Iterable[str], samples: bytes | None) -> str:
    """Of a run that was recorded before runs said it: only synthetic images train others."""
    trained_others = any(name in metrics for name in ("lr_accuracy", "mlp_accuracy"))
    return "synthesizer" if trained_others or samples is not None else "classifier"


def _fetch(client: MlflowClient, run: Any, name: str, folder: str) -> Path:
    return Path(client.download_artifacts(run.info.run_id, name, folder))


def _samples(client: MlflowClient, run: Any, folder: str) -> bytes | None:
    held = {file.path for file in client.list_artifacts(run.info.run_id)}
    if "extra" in held:
        held |= {file.path for file in client.list_artifacts(run.info.run_id, "extra")}
    name = next((name for name in _SAMPLES if name in held), None)
    return None if name is None else _fetch(client, run, name, folder).read_bytes()


def _settings(params: dict[str, str]) -> dict[str, str]:
    """The method's settings among the parameters; one named like a field has a prefix."""
    own = {n: v for n, v in params.items() if n not in _SPEC_FIELDS}
    return {name.removeprefix("settings."): own[name] for name in sorted(own)}
