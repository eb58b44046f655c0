"""`record_evaluation(...)`: what was measured of a recorded model later, beside what its run wrote.

Metrics go to the model's MLflow run as `evaluate/<dataset>/<suite>/<name>`: a run's own metrics
have no slash, so none of them is ever replaced, and figures of another dataset cannot be taken for
the model's own. Each evaluation is also one file below `evaluations/`, with sources and settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dpray import __version__
from dpray.data.words import dataset_name
from dpray.evaluation.metrics import Metric
from dpray.tracking.metrics import LOGGABLE, log_metrics, loggable
from dpray.tracking.reach import clear_failure
from dpray.tracking.registry import ModelRow, list_models
from dpray.tracking.store import connect, store_lock, tracking_uri

_LONGEST_DATASET = 100  # of the 250 characters that MLflow gives the name of a metric


@dataclass(frozen=True)
class Evaluation:
    """What was measured, of what, and how. A classifier has no suite, runs, count or seed."""

    subject: str
    dataset: str
    reference: str
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...] = ()
    suite: str | None = None
    runs: int | None = None
    count: int | None = None
    seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        metrics = [
            {"name": m.name, "value": _number(m.value), "source": m.source.value}
            for m in self.metrics
        ]
        return {**asdict(self), "metrics": metrics, "notes": list(self.notes)}


def split_by_source(metrics: Sequence[Metric]) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    """(what may be recorded, what is private and must not be)."""
    shown = tuple(metric for metric in metrics if metric.source in LOGGABLE)
    return shown, tuple(metric for metric in metrics if metric.source not in LOGGABLE)


def recorded_as(run_id: str) -> ModelRow | None:
    """The registered model of a run, where the run was recorded."""
    return next((row for row in list_models(sort="created") if row.run_id == run_id), None)


def record_evaluation(row: ModelRow, evaluation: Evaluation) -> str:
    """Adds an evaluation to the MLflow run of a model. Returns the name of its artefact.

    Guarantee: refuses the whole of it, before anything is sent, where one metric is private.
    The model's tags, `accuracy` among them, stay what its own run measured.
    """
    passed = loggable(evaluation.metrics)
    named = [replace(m, name=metric_key(evaluation, m.name)) for m in passed]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    artifact = f"evaluations/{stamp}.json"
    content = {**evaluation.to_json(), "model": row.reference, "dpray": __version__}
    client = connect()
    with clear_failure(tracking_uri(), "write to"), store_lock():
        # The file first: a number without its sources and settings is never left behind.
        client.log_text(row.mlflow_run, json.dumps(content, indent=2) + "\n", artifact)
        log_metrics(client, row.mlflow_run, named)
    return artifact


def metric_key(evaluation: Evaluation, name: str) -> str:
    dataset = dataset_name(evaluation.dataset)[:_LONGEST_DATASET]
    suite = () if evaluation.suite is None else (evaluation.suite,)
    return "/".join(("evaluate", dataset, *suite, name))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity
