"""A worker that holds processors while it waits for its pool, as those of Ray Train do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from dpray.distributed import slots
from dpray.distributed.pool import RayPool
from dpray.progress import Bar


@dataclass
class Mapped:
    """What came of a map, and what its bar showed."""

    results: list[Any]
    error: Exception | None
    cpu_seconds: float
    notes: list[str]
    done: int
    pid: int


class Holder:
    def __init__(self, patience: float | None = None) -> None:
        self.notes: list[str] = []
        self.done = 0
        if patience is not None:
            slots._PATIENCE = patience

    def map(
        self,
        fn: Callable[..., Any],
        jobs: Sequence[Any],
        *,
        lent_cpus: float = 2,
        shared: Any = None,
        **words: Any,
    ) -> Mapped:
        self.notes, self.done = [], 0
        pool = RayPool(self.progress, lent_cpus=lent_cpus)
        results: list[Any] = []
        error = None
        try:
            results.extend(pool.map(fn, jobs, shared=shared, **words))
        except Exception as raised:
            error = raised
        return Mapped(results, error, pool.cpu_seconds, self.notes, self.done, os.getpid())

    # A progress and its bar, which remember what was shown.
    def progress(self, label: str, total: int | None) -> Bar:
        return self

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        self.done += count

    def note(self, text: str) -> None:
        self.notes.append(text)


def hold(cpus: float, patience: float | None = None) -> Any:
    """A `Holder` in a process of its own that has `cpus` of the cluster for itself."""
    holder = ray.remote(Holder).options(num_cpus=cpus).remote(patience)
    ray.get(holder.map.remote(nothing, []))  # it is there: from now on nobody else has them
    return holder


def nothing(job: int, shared: Any) -> int:
    return job


def place(job: int, seconds: float) -> tuple[float, float, str]:
    """When the job ran, and on which node."""
    started = time.time()
    time.sleep(seconds)
    return started, time.time(), ray.get_runtime_context().get_node_id()


def process(job: int, shared: Any) -> int:
    return os.getpid()


def spin(job: int, seconds: float) -> int:
    """Uses a processor for so long, counted in the processor's own time."""
    started = time.process_time()
    while time.process_time() - started < seconds:
        pass
    return job
