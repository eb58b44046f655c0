"""`record_search(outcome)`: one MLflow run for a search, and below it one for each trial.

The best result is recorded as any other, with its model registered, and is found below the search
too. The other trials have a draw and a score and no model. As with `record`, a search that is
recorded twice is recorded once, and one that broke half-way is taken up again.
"""

from __future__ import annotations

import csv
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpray import __version__
from dpray.data.words import dataset_name
from dpray.errors import NotPrivate
from dpray.evaluation.metrics import Metric, Source
from dpray.search.journal import Finished
from dpray.search.outcome import SearchOutcome
from dpray.search.space import Choice, Dimension, LogUniform, Whole
from dpray.search.trials import SearchSpec
from dpray.tracking.metrics import log_metrics, loggable
from dpray.tracking.reach import clear_failure
from dpray.tracking.record import (
    LONGEST_PARAM,
    PARENT_TAG,
    RUN_TAG,
    SEARCH_TAG,
    marked_if_broken,
    refuse_private,
    refuse_unfit,
    write_json,
    write_run,
)
from dpray.tracking.store import connect, experiment_id, store_lock, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRIAL_TAG = "dpray.trial"
_SCORE_OF_BEST = "search_score"  # the metric of a released trial that holds its score


def record_search(outcome: SearchOutcome, *, plots: Sequence[Path] = ()) -> str | None:
    """Records a finished search. Returns `models:/<name>/<version>` of its best result.

    Guarantee: with `charge` select nothing of any trial but the best is written: no number, no
    count, no score and no duration. The times that MLflow keeps are those of the recording.
    """
    # All refusals come first, those of the best result too: nothing has left until then.
    _refuse_what_stays_secret(outcome, plots)
    if outcome.best is not None:
        refuse_unfit(outcome.best)
    for path in plots:
        refuse_private(path, outcome.best)
    client = connect()
    with clear_failure(tracking_uri(), "write to"), store_lock():
        run = _open_run(client, outcome)
        mlflow_run = run.info.run_id
        if run.info.status == "FINISHED":
            return _write_best(client, outcome, mlflow_run)
        with marked_if_broken(client, mlflow_run):
            _log(client, mlflow_run, outcome, plots)
            _write_trials(client, mlflow_run, run.info.experiment_id, outcome)
            return _write_best(client, outcome, mlflow_run)


def trial_outcome(trial: Finished) -> str:
    """How a trial came to its end: ended, stopped (by a scheduler) or failed."""
    if trial.stopped:
        return "stopped"
    return "ended" if math.isfinite(trial.score) else "failed"


def space_text(dimension: Dimension) -> str:
    """A dimension as it is written in a file with a search space."""
    if isinstance(dimension, Choice):
        return f"choice({', '.join(map(repr, dimension.values))})"
    ends = f"{dimension.low:g}, {dimension.high:g}"
    if isinstance(dimension, Whole):
        return f"whole({dimension.low}, {dimension.high}{', log=True' if dimension.log else ''})"
    return f"log_uniform({ends})" if isinstance(dimension, LogUniform) else f"uniform({ends})"


def _refuse_what_stays_secret(outcome: SearchOutcome, plots: Sequence[Path]) -> None:
    if outcome.search.charge != "select":
        return
    where = "a search with --charge select releases its best trial alone"
    if outcome.trials or plots:
        raise NotPrivate(f"{where}: neither its trials nor plots of them can be recorded")
    if outcome.best is None:
        return
    if outcome.best.run_id != outcome.search_id:
        raise NotPrivate(f"{where}: it is recorded under the id of the search and no other")
    for metric in outcome.best.metrics:
        if metric.source is Source.COST:
            raise NotPrivate(f"{where}: {metric.name!r} tells of time and cannot be logged")


def _open_run(client: MlflowClient, outcome: SearchOutcome) -> Any:
    """The MLflow run of this search: the one that is there, or a new one."""
    experiment = experiment_id(client)
    # The best result has the tag as well, and the tag of a run beside it.
    for run in _runs(client, experiment, f"tags.`{SEARCH_TAG}` = '{outcome.search_id}'"):
        if RUN_TAG not in run.data.tags:
            return run
    best = outcome.best
    fit = outcome.cost.releasable and (best is None or best.card.fit_for_release)
    tags = {
        SEARCH_TAG: outcome.search_id,
        "dpray.version": __version__,
        "charge": outcome.search.charge,
        "method": outcome.search.method,
        "dataset": dataset_name(outcome.search.dataset),
        "covers": outcome.cost.covers,
        "fit_for_release": "true" if fit else "false",
    }
    return client.create_run(experiment, run_name=outcome.search_id, tags=tags)


def _runs(client: MlflowClient, experiment: str, where: str) -> Iterator[Any]:
    page: Any = client.search_runs([experiment], where)
    while page:
        yield from page
        page = page.token and client.search_runs([experiment], where, page_token=page.token)


def _write_best(client: MlflowClient, outcome: SearchOutcome, parent: str) -> str | None:
    return None if outcome.best is None else write_run(client, outcome.best, parent=parent)


def _log(
    client: MlflowClient, mlflow_run: str, outcome: SearchOutcome, plots: Sequence[Path]
) -> None:
    from mlflow.entities import Param

    params = [Param(name, value) for name, value in _params(outcome.search).items()]
    client.log_batch(mlflow_run, params=params)
    log_metrics(client, mlflow_run, _metrics(outcome))
    with TemporaryDirectory() as folder:
        _write_artifacts(outcome, plots, Path(folder))
        client.log_artifacts(mlflow_run, folder)


def _params(search: SearchSpec) -> dict[str, str]:
    """Fields of the search, with a line for each key of the space and each fixed setting."""
    named = {field.name: getattr(search, field.name) for field in fields(search)}
    space, settings = named.pop("space"), named.pop("settings")
    named["adjacency"] = search.adjacency.value
    named |= {f"space.{name}": space_text(one) for name, one in space.items()}
    named |= {f"settings.{name}": value for name, value in settings.items()}
    return {name: str(value)[:LONGEST_PARAM] for name, value in named.items()}


def _metrics(outcome: SearchOutcome) -> list[Metric]:
    made = [Metric("search_delta", outcome.cost.delta, Source.LEDGER)]
    if math.isfinite(outcome.cost.epsilon):
        made.append(Metric("search_epsilon", outcome.cost.epsilon, Source.LEDGER))
    return [*made, *_best_score(outcome)]


def _best_score(outcome: SearchOutcome) -> list[Metric]:
    """What the best trial was chosen by; with `charge` select its own metrics tell it."""
    if outcome.best is None:
        return []
    if outcome.search.charge == "select":
        own = [metric for metric in outcome.best.metrics if metric.name == _SCORE_OF_BEST]
        return [replace(metric, name="best_score") for metric in own]
    best = outcome.best_trial
    return [] if best is None else [Metric("best_score", best.score, _source(outcome.search))]


def _source(search: SearchSpec) -> Source:
    """Where scores are from: trials on private records are scored by a noisy count of them."""
    return Source.PUBLIC_TEST if search.charge == "public" else Source.NOISY_HOLD_OUT


def _write_artifacts(outcome: SearchOutcome, plots: Sequence[Path], folder: Path) -> None:
    write_json(folder / "search.json", outcome.search.to_json())
    write_json(folder / "cost.json", outcome.cost.to_json())
    final = outcome.final or (None if outcome.best is None else outcome.best.spec)
    if final is not None:
        write_json(folder / "best.json", final.to_json())
    if outcome.search.charge != "select":
        _write_table(folder / "trials.csv", outcome)
    for path in plots:
        shutil.copyfile(path, folder / path.name)


def _write_table(path: Path, outcome: SearchOutcome) -> None:
    names = list(outcome.search.space)
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["number", "score", "outcome", *names])
        for trial in outcome.trials:
            score = trial.score if math.isfinite(trial.score) else None
            drawn = [trial.draw.get(name) for name in names]
            table.writerow([trial.number, score, trial_outcome(trial), *drawn])


def _write_trials(
    client: MlflowClient, parent: str, experiment: str, outcome: SearchOutcome
) -> None:
    """A run for each trial. One that an earlier attempt began is found by its number."""
    below = _runs(client, experiment, f"tags.`{PARENT_TAG}` = '{parent}'") if outcome.trials else ()
    known = {run.data.tags[TRIAL_TAG]: run for run in below if TRIAL_TAG in run.data.tags}
    for trial in outcome.trials:
        run = known.get(str(trial.number))
        if run is None:
            run = client.create_run(
                experiment,
                run_name=f"{outcome.search_id}-trial-{trial.number:03d}",
                tags={
                    PARENT_TAG: parent,
                    TRIAL_TAG: str(trial.number),
                    "outcome": trial_outcome(trial),
                },
            )
        if run.info.status == "RUNNING":  # its last write says how it ended
            _log_trial(client, run.info.run_id, trial, _source(outcome.search))


def _log_trial(client: MlflowClient, mlflow_run: str, trial: Finished, source: Source) -> None:
    from mlflow.entities import Metric as Logged
    from mlflow.entities import Param

    now = int(time.time() * 1000)
    scores = [Metric("score", trial.score, source)] if math.isfinite(trial.score) else []
    client.log_batch(
        mlflow_run,
        metrics=[Logged(m.name, m.value, now, 0) for m in loggable(scores)],
        params=[Param(name, str(value)[:LONGEST_PARAM]) for name, value in trial.draw.items()],
    )
    failed = trial_outcome(trial) == "failed"
    client.set_terminated(mlflow_run, "FAILED" if failed else "FINISHED")
