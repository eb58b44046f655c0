"""What may be logged: metrics whose source is known to be public or paid for, nothing else.

The default is to refuse. A private or unknown source stops the call before the first value of
the batch has left, so a mistake upstream costs a run its record and never a person's privacy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpray.errors import NotPrivate
from dpray.evaluation.metrics import Metric, Source

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOGGABLE = (
    Source.PUBLIC_TEST,
    Source.NOISY_HOLD_OUT,
    Source.RELEASE,
    Source.LEDGER,
    Source.COST,
)
ACCURACY_SOURCES = (Source.PUBLIC_TEST, Source.NOISY_HOLD_OUT)


def loggable(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """The metrics, all of them, or an error that names the first one that must not leave."""
    for metric in metrics:
        if not isinstance(metric, Metric):
            raise NotPrivate(f"a {type(metric).__name__} names no source and cannot be logged")
        # The type counts too: a plain string is not a source somebody vouched for.
        if not isinstance(metric.source, Source) or metric.source not in LOGGABLE:
            raise NotPrivate(
                f"metric {metric.name!r} has the source {str(metric.source)!r} and cannot be "
                f"logged; loggable are: {', '.join(LOGGABLE)}"
            )
    return tuple(metrics)


def log_metrics(client: MlflowClient, mlflow_run: str, metrics: Sequence[Metric]) -> None:
    """Logs all metrics at once, after every one of them passed."""
    from mlflow.entities import Metric as Logged

    now = int(time.time() * 1000)
    passed = [Logged(m.name, m.value, now, 0) for m in loggable(metrics)]
    client.log_batch(mlflow_run, metrics=passed)


def accuracy(metrics: Sequence[Metric]) -> float | None:
    """Test accuracy where it may be shown."""
    return next(
        (m.value for m in metrics if m.name == "test_accuracy" and m.source in ACCURACY_SOURCES),
        None,
    )
