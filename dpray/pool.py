"""How a method fans work out: `run.pool.map(fn, jobs, shared=...)`.

`fn(job, shared)` is a module-level function of dpray (workers import it by name) and a job
carries its own seed, so that doing it again, elsewhere, gives the same bits. Methods never
learn whether the pool is this process (`SerialPool`) or a Ray cluster (`distributed.pool`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

from dpray.progress import Progress, silent

Job = TypeVar("Job")
Out = TypeVar("Out")


class Pool(Protocol):
    # Processor time that jobs took in other processes, as far as their results were read.
    cpu_seconds: float

    def map(
        self,
        fn: Callable[[Job, Any], Out],
        jobs: Iterable[Job],
        *,
        shared: Any = None,
        cpus: float = 1,
        gpus: float = 0,
        retries: int = 3,
        label: str = "tasks",
        quiet: bool = False,
    ) -> Iterator[Out]:
        """`fn(job, shared)` for every job, in the order of the jobs, as they become ready.

        `quiet` shows no bar, for a caller that has one which counts something else than jobs.
        """
        ...


class SerialPool:
    """One job after another in this process: the reference every other pool must equal."""

    def __init__(self, progress: Progress = silent) -> None:
        self.progress = progress
        self.cpu_seconds = 0.0  # all of it is spent in this process, which counts it itself

    def map(
        self,
        fn: Callable[[Job, Any], Out],
        jobs: Iterable[Job],
        *,
        shared: Any = None,
        cpus: float = 1,
        gpus: float = 0,
        retries: int = 3,
        label: str = "tasks",
        quiet: bool = False,
    ) -> Iterator[Out]:
        total = len(jobs) if isinstance(jobs, Sized) else None
        with (silent if quiet else self.progress)(label, total) as bar:
            for job in jobs:
                yield fn(job, shared)
                bar.advance()
