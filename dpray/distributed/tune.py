"""The trials of a search on Ray Tune: several at a time, and none lost or repeated.

Tune places trials, restarts those whose worker died and lets a scheduler stop some. What to try
comes from `Trials`, whose journal is on the disk before a trial starts; so a driver that was killed
starts Tune anew, and Tune's own state is not needed. Nothing of a trial but its noisy score passes
through Ray, and Tune's files lie on the private side of the search.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from ray import tune
from ray.tune import FailureConfig, PlacementGroupFactory, RunConfig, TuneConfig
from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher

from dpray import methods
from dpray.distributed.cluster import Cluster, connect, threads_per_worker
from dpray.distributed.environment import environment_for_workers
from dpray.distributed.fit import in_a_thread
from dpray.distributed.pool import RayPool
from dpray.errors import BadInput, ClusterFailed
from dpray.memory import give_back
from dpray.progress import Progress, silent
from dpray.search.conduct import bar_of, run_trial
from dpray.search.handing_out import Job, Trials
from dpray.search.journal import WORST
from dpray.search.modes import Scheduler

# No files beside the journal, and nothing on the terminal: with `select` even a count would tell.
_QUIET = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
_RETRIES = 3
_FOLDER = "ray-tune"
# What a trial reports: its noisy score, how far it is in units of the first look, and its end.
_SCORE, _SHARE, _ENDED, _WORST = "score", "share", "ended", "worst"
_FACTOR = 2  # a look comes when training is this many times as far as at the one before
_LOWEST = -1.0  # below any accuracy, and a number: schedulers take means


@dataclass(frozen=True)
class TrialSize:
    """What one trial gets, and how many run at a time."""

    cpus: int = 1
    gpus: float | None = None  # None: one where the cluster has some
    concurrent: int | None = None  # None: as many as the cluster holds
    address: str | None = None
    wait: bool = False  # for a cluster that is still growing

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise BadInput(f"--cpus-per-trial {self.cpus} is out of range: at least 1")
        if self.gpus is not None and self.gpus < 0:
            raise BadInput(f"--gpus-per-trial {self.gpus:g} must not be negative")
        if self.concurrent is not None and self.concurrent < 1:
            raise BadInput(f"--concurrent {self.concurrent} is out of range: at least 1")


def run_on_ray(
    trials: Trials,
    size: TrialSize,
    *,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda text: None,
    test_key: int | None = None,
) -> None:
    """All that is left of a search, on the cluster."""
    if not trials.left:
        return
    cluster = connect(size.address)
    gpus = _gpus(cluster, size)
    cluster.require(
        workers=1, cpus_per_worker=size.cpus, gpus_per_worker=gpus, wait=size.wait, say=say
    )
    os.environ.update(_QUIET)
    storage = trials.folder.private / _FOLDER
    shutil.rmtree(storage, ignore_errors=True)  # of a driver that was killed
    bundles = bundles_of(trials.search.method, size.cpus, gpus)
    constants = {
        "cpus": size.cpus,
        "spare": len(bundles) - 1,
        "environment": environment_for_workers(),
        "test_key": test_key,
    }
    with bar_of(trials, progress) as shown:
        tuner = tune.Tuner(
            tune.with_resources(_work, PlacementGroupFactory(bundles)),
            param_space=constants,
            tune_config=TuneConfig(
                metric=_SCORE,
                mode="max",
                search_alg=_FromJournal(trials, shown),
                scheduler=_scheduler(trials.search.scheduler, trials.search.looks),
                reuse_actors=True,  # a process that has torch already saves seconds a trial
                num_samples=-1,  # until the journal has no more
                max_concurrent_trials=size.concurrent or _as_many_as_fit(cluster, size, gpus),
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=RunConfig(
                name=_FOLDER,
                storage_path=str(trials.folder.private.absolute()),
                failure_config=FailureConfig(max_failures=_RETRIES),
                verbose=0,
            ),
        )
        in_a_thread(tuner.fit)
    shutil.rmtree(storage, ignore_errors=True)
    if trials.journal.unfinished() or trials.left:
        raise ClusterFailed(
            "Ray Tune ended before all trials did; no budget is lost, go on with: dpray tune "
            f"--resume {trials.folder.search_id}"
        )


def bundles_of(method: str, cpus: int, gpus: float) -> list[dict[str, float]]:
    """A placement group for one trial: its own bundle and, if it fans out, one for every task."""
    head: dict[str, float] = {"GPU": gpus} if gpus else {}
    if getattr(methods.find(method), "fans_out", False):
        return [{"CPU": 1.0} | head, *({"CPU": 1.0} for _ in range(cpus - 1))]
    return [{"CPU": float(cpus)} | head]


class _FromJournal(Searcher):
    """Tune's questions, answered from the journal. It keeps no state that could be lost."""

    def __init__(self, trials: Trials, shown: bar_of) -> None:
        super().__init__(metric=_SCORE, mode="max")
        self._trials, self._shown = trials, shown
        self._numbers: dict[str, int] = {}

    def suggest(self, trial_id: str) -> Any:
        job = self._trials.next()
        if job is None:
            return Searcher.FINISHED
        self._numbers[trial_id] = job.number
        return {"job": asdict(job) | {"runs": str(job.runs)}}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial that failed for good keeps its number and its charge, and counts as worst."""
        number = self._numbers.pop(trial_id)
        ended = not error and result is not None
        score = float(result[_SCORE]) if ended and result and not result[_WORST] else WORST
        stopped = ended and result is not None and not result[_ENDED]
        finished = self._trials.ended(number, score, stopped=stopped)
        if stopped or not ended:
            self._trials.folder.trial(finished.run_id).close()
        self._shown.ended(finished)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see `save`."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its settings: neither the key nor the journal goes along


def _work(config: dict[str, Any]) -> None:
    """One trial in its worker, from the start or after a failure."""
    os.environ.update(config["environment"])
    cpus, spare = config["cpus"], config["spare"]
    torch.set_num_threads(threads_per_worker(cpus - spare))
    job = Job(**config["job"] | {"runs": Path(config["job"]["runs"])})
    score = run_trial(
        job,
        pool=RayPool(lent_cpus=cpus - spare, spare_bundles=spare),
        report=lambda place, noisy: _report(noisy, place, ended=False),
        test_key=config["test_key"],
    )
    give_back()  # the next trial may come to this process
    _report(score, job.looks, ended=True)


def _report(score: float, place: int, *, ended: bool) -> None:
    tune.report(
        {
            _SCORE: max(score, _LOWEST),
            _WORST: score == WORST,
            _SHARE: _FACTOR ** (place - 1),
            _ENDED: ended,
        }
    )


def _scheduler(name: Scheduler, looks: int) -> TrialScheduler | None:
    if name == "asha":
        # Beyond the last look: a trial that came to its end has nothing left to be stopped.
        return AsyncHyperBandScheduler(
            time_attr=_SHARE, max_t=_FACTOR**looks, grace_period=1, reduction_factor=_FACTOR
        )
    if name == "median":
        return MedianStoppingRule(time_attr=_SHARE, grace_period=1)
    return None


def _gpus(cluster: Cluster, size: TrialSize) -> float:
    if size.gpus is not None:
        return size.gpus
    return 1.0 if cluster.resources().gpus >= 1 else 0.0


def _as_many_as_fit(cluster: Cluster, size: TrialSize, gpus: float) -> int:
    return max(1, cluster.resources().slots(size.cpus, gpus))
