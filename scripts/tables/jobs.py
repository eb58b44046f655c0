"""The jobs of a table, one after another or on a Ray pool: runs of rows, trainings on releases.

A job keeps its own result in the results folder, so only what it said and what went wrong come
back. One that fails leaves the others alone. On a cluster, the results folder, dpray's home and
these scripts must lie at the same path on all nodes.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from dpray.errors import DprayError
from dpray.pool import Pool, SerialPool
from dpray.progress import Progress, silent, terminal
from tables.kept import Place, Say, run_once

# What a worker needs to find the same data, runs and records as the driver.
_FOLDERS = ("DPRAY_HOME", "DPRAY_CACHE", "DPRAY_DATA")
_VARIABLES = ("MLFLOW_TRACKING_URI", "DPRAY_CHECKPOINT_SECONDS")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class How:
    """What is the same for all jobs."""

    track: bool = True
    quiet: bool = False
    remote: bool = False  # in a worker: nobody sees its terminal
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        return silent if self.quiet or self.remote else terminal


class Job(Protocol):
    @property
    def name(self) -> str: ...

    def do(self, how: How, say: Say) -> None: ...


@dataclass(frozen=True)
class RunJob:
    """The run of one row and seed."""

    place: Place

    @property
    def name(self) -> str:
        return f"{self.place.row.label}, seed {self.place.seed}"

    def do(self, how: How, say: Say) -> None:
        run_once(self.place, track=how.track, progress=how.progress, say=say)


@dataclass(frozen=True)
class Outcome:
    name: str
    said: tuple[str, ...]
    error: str | None


def do(job: Job, how: How) -> Outcome:
    """One job, here or in a worker. Whatever goes wrong comes back as text."""
    os.environ.update(how.environment)
    said: list[str] = []
    say: Callable[[str], None] = said.append if how.remote else note
    if not how.remote:
        say(job.name)
    try:
        job.do(how, say)
    except DprayError as error:
        return Outcome(job.name, tuple(said), str(error))
    except Exception:
        return Outcome(job.name, tuple(said), traceback.format_exc().strip())
    return Outcome(job.name, tuple(said), None)


@dataclass(frozen=True)
class Workers:
    """Where jobs are done: this process, a Ray of its own, or the cluster at an address."""

    jobs: int = 1
    threads: int = 1
    address: str | None = None

    def carry_out(self, jobs: Sequence[Job], how: How) -> int:
        """Does all jobs and says what became of them; gives back how many failed."""
        failed = 0
        if not jobs:
            return failed
        with self.pool(len(jobs)) as (pool, remote, gpus):
            how = replace(how, remote=remote, environment=_environment() if remote else {})
            done = pool.map(do, jobs, shared=how, cpus=self.threads, gpus=gpus, quiet=True)
            for number, outcome in enumerate(done, 1):
                for line in outcome.said:
                    note(line)
                if outcome.error is not None:
                    failed += 1
                    note(f"{outcome.name}: {outcome.error}")
                elif remote:
                    note(f"{outcome.name}: done ({number} of {len(jobs)})")
        return failed

    @contextmanager
    def pool(
        self, num_jobs: int, progress: Progress = silent
    ) -> Iterator[tuple[Pool, bool, float]]:
        """The pool, whether its jobs are done elsewhere, and the GPUs of one of them."""
        if self.jobs == 1 and self.address is None:
            yield SerialPool(progress), False, 0.0
            return
        # Ray takes a second to import: only whoever asks for it waits for it.
        from dpray.distributed.cluster import connect, disconnect
        from dpray.distributed.pool import RayPool

        cluster = connect(self.address or "local", num_cpus=self.jobs * self.threads)
        try:
            has = cluster.resources()
            gpus = min(1.0, has.gpus / max(1, has.slots(self.threads, 0)))
            # All at once: results are a few words, and a long job must not hold up those behind
            # it. One job a task: what a lost worker had done is on the disk already.
            yield RayPool(progress, cluster=cluster, window=num_jobs, chunks=False), True, gpus
        finally:
            disconnect()


def _environment() -> dict[str, str]:
    folders = {k: os.path.abspath(os.environ[k]) for k in _FOLDERS if k in os.environ}
    return folders | {k: os.environ[k] for k in _VARIABLES if k in os.environ}
