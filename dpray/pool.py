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
    ) -> Iterator[Out]:
        """`fn(job, shared)` for every job, in the order of the jobs, as they become ready."""
        ...


class SerialPool:
    """One job after another in this process: the reference every other pool must equal."""

    def __init__(self, progress: Progress = silent) -> None:
        self.progress = progress

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
    ) -> Iterator[Out]:
        total = len(jobs) if isinstance(jobs, Sized) else None
        with self.progress(label, total) as bar:
            for job in jobs:
                yield fn(job, shared)
                bar.advance()
