"""A `Pool` on a Ray cluster: the results of `SerialPool`, bit for bit and in order, but sooner.

A bounded window of Ray tasks is under way at any time, so ten thousand jobs need no more memory
than a few. Tiny jobs are sent several to a task. Ray runs again what a lost worker or node had
in hand or had not delivered yet; an exception of the function itself is never tried again.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from dpray.distributed.chunks import ChunkResult, Failure, run_chunk, unpack
from dpray.distributed.cluster import Cluster, connect
from dpray.errors import ClusterFailed, DprayError
from dpray.pool import Job, Out
from dpray.progress import Bar, Progress, silent

_TASKS_PER_SLOT = 4  # enough that no core waits for the driver, also with one slow job ahead
_TINY_SECONDS = 0.05  # below this a job is shorter than some 50 times the cost of a Ray task
_CHUNK_SECONDS = 0.1
_CHUNK_LIMIT = 1024
_STORE_SHARE = 0.25  # of the object store, for results under way
_LOOK_AGAIN = 10.0  # seconds between two looks at what the cluster has


class RemoteTraceback(Exception):
    """Shown as the cause of an exception that was raised in a worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class _Sent(NamedTuple):
    reference: ray.ObjectRef
    first: int
    jobs: int


class _Sizes:
    """How many jobs go into one task and how many tasks are under way, from what was measured."""

    def __init__(
        self, window: int | None, max_bytes: int | None, limit: int, total: int | None
    ) -> None:
        self.window, self.max_bytes, self.limit, self.total = window, max_bytes, limit, total
        self.slots = 1
        self.seconds: float | None = None
        self.bytes = 0.0
        self.chunk = 1

    def learn(self, chunk: ChunkResult) -> None:
        if chunk.count == 0:
            return
        seconds = chunk.seconds / chunk.count
        # The first jobs of a worker pay for imports: fall fast, rise slowly.
        known = seconds if self.seconds is None else self.seconds
        self.seconds = seconds if seconds < known else 0.8 * known + 0.2 * seconds
        self.bytes = max(0.9 * self.bytes, len(chunk.results) / chunk.count)
        tiny = self.seconds < _TINY_SECONDS
        fits = int(_CHUNK_SECONDS / max(self.seconds, 1e-7)) if tiny else 1
        self.chunk = max(1, min(fits, 4 * self.chunk, self.limit))

    def next_chunk(self, sent: int) -> int:
        """Jobs for the next task; towards the end fewer, so that all cores end together."""
        size = self.chunk
        if self.total is not None:
            size = min(size, -(-(self.total - sent) // (2 * self.slots)))
        if self.max_bytes is not None and self.bytes > 0:
            size = min(size, int(self.max_bytes / (2 * self.slots * self.bytes)))
        return max(1, size)

    def has_room(self, sent: deque[_Sent], unread_jobs: int) -> bool:
        window = self.window or _TASKS_PER_SLOT * self.slots
        if len(sent) >= window:
            return False
        full = self.max_bytes is not None and unread_jobs * self.bytes >= self.max_bytes
        return not sent or not full


class RayPool:
    """Fans jobs out over a cluster. `window` bounds the Ray tasks sent and not yet read,
    `max_bytes` their results in the object store (a quarter of it by default)."""

    def __init__(
        self,
        progress: Progress = silent,
        *,
        cluster: Cluster | None = None,
        window: int | None = None,
        max_bytes: int | None = None,
        chunks: bool = True,
        wait: bool = False,
    ) -> None:
        self.progress = progress
        self.cluster = cluster
        self.window = window
        self.max_bytes = max_bytes
        self.chunk_limit = _CHUNK_LIMIT if chunks else 1
        self.wait = wait  # for nodes that an autoscaler may add

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
        cluster = self.cluster or connect()
        total = len(jobs) if isinstance(jobs, Sized) else None
        sizes = _Sizes(self.window, self.max_bytes, self.chunk_limit, total)
        task = ray.remote(run_chunk).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=retries, retry_exceptions=False, name=label
        )
        reference = [] if shared is None else [ray.put(shared)]
        left, given, reruns = iter(jobs), 0, 0
        sent: deque[_Sent] = deque()
        looked = -_LOOK_AGAIN
        with self.progress(label, total) as bar:
            try:
                while True:
                    if time.monotonic() - looked > _LOOK_AGAIN:
                        self._look(cluster, sizes, cpus, gpus)
                        looked = time.monotonic()
                    while sizes.has_room(sent, sum(one.jobs for one in sent)):
                        chunk = list(itertools.islice(left, sizes.next_chunk(given)))
                        if not chunk:
                            break
                        new = task.remote(fn, chunk, reference, cpus)
                        sent.append(_Sent(new, given, len(chunk)))
                        given += len(chunk)
                    if not sent:
                        return
                    result = self._result(cluster, sent[0], bar, label, cpus, gpus)
                    first = sent.popleft().first
                    sizes.learn(result)
                    if result.attempt:
                        reruns += 1
                        bar.note(f"{reruns} run again after a lost worker")
                    for out in unpack(result):
                        yield out
                        bar.advance()
                    if result.failure is not None:
                        _raise(result.failure, first + result.count, label, bar)
            finally:
                # Reached with tasks under way after an error or when the reader stops early.
                for one in sent:
                    ray.cancel(one.reference, force=False)

    def _look(self, cluster: Cluster, sizes: _Sizes, cpus: float, gpus: float) -> None:
        cluster.require(workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus, wait=self.wait)
        has = cluster.resources()
        sizes.slots = max(1, has.slots(cpus, gpus))
        sizes.max_bytes = self.max_bytes or int(_STORE_SHARE * has.object_store) or None

    def _result(
        self, cluster: Cluster, one: _Sent, bar: Bar, label: str, cpus: float, gpus: float
    ) -> ChunkResult:
        """Waits for the task that is next in order, for as long as it can still be run."""
        try:
            while not ray.wait([one.reference], timeout=_LOOK_AGAIN)[0]:
                # The only node that could run it may have left: say so instead of waiting on.
                cluster.require(
                    workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus, wait=self.wait
                )
            result: ChunkResult = ray.get(one.reference)
            return result
        except RayTaskError as error:
            # Not the function's own exception, which travels inside the result: the function or
            # a job could not be read by the worker, or the results could not be packed.
            bar.note("failed")
            text = str(error.cause).strip().splitlines() or [type(error.cause).__name__]
            raise ClusterFailed(f"{_named(one, label)} could not be run: {text[-1]}") from error
        except RayError as error:
            bar.note("failed")
            text = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {text[0]}"
            raise ClusterFailed(
                f"{_named(one, label)} failed with its last worker ({why[:200]})"
            ) from error


def _named(one: _Sent, label: str) -> str:
    last = one.first + one.jobs - 1
    return (
        f"job {one.first} of {label!r}"
        if one.jobs == 1
        else f"jobs {one.first} to {last} of {label!r}"
    )


def _raise(failure: Failure, index: int, label: str, bar: Bar) -> None:
    bar.note(f"job {index} failed")
    if isinstance(failure.error, DprayError):
        raise failure.error  # one finished sentence: nothing to add
    failure.error.add_note(f"raised by job {index} of {label!r}, in a worker")
    raise failure.error from RemoteTraceback(failure.trace)
