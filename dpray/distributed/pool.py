"""A `Pool` on a Ray cluster: the results of `SerialPool`, bit for bit and in order, but sooner.

A bounded window of Ray tasks is under way at any time, so ten thousand jobs need no more memory
than a few. Tiny jobs are sent several to a task. Ray runs again what a lost worker or node had
in hand or had not delivered yet; an exception of the function itself is never tried again.
Inside a Ray Train worker the pool lends that worker's processors to its tasks (`slots`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dpray.distributed.chunks import ChunkResult, Failure, unpack
from dpray.distributed.cluster import Cluster, connect
from dpray.distributed.slots import ClusterSlots, LentSlots, Sent
from dpray.errors import ClusterFailed, DprayError
from dpray.pool import Job, Out, SerialPool
from dpray.progress import Bar, Progress, silent

_TASKS_PER_SLOT = 4  # enough that no core waits for the driver, also with one slow job ahead
_TINY_SECONDS = 0.05  # below this a job is shorter than some 50 times the cost of a Ray task
_CHUNK_SECONDS = 0.1
_CHUNK_LIMIT = 1024


class RemoteTraceback(Exception):
    """Shown as the cause of an exception that was raised in a worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


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

    def has_room(self, sent: deque[Sent]) -> bool:
        window = self.window or _TASKS_PER_SLOT * self.slots
        if len(sent) >= window:
            return False
        unread_jobs = sum(one.count for one in sent)
        full = self.max_bytes is not None and unread_jobs * self.bytes >= self.max_bytes
        return not sent or not full


class RayPool:
    """Fans jobs out over a cluster. `window` bounds the Ray tasks sent and not yet read,
    `max_bytes` their results in the object store (a quarter of it by default).

    `lent_cpus` is for a pool inside a worker that holds so many processors: it lends them to its
    tasks while it waits, and takes besides only what is free on the cluster, and the
    `spare_bundles` of its placement group, of one processor each.
    """

    def __init__(
        self,
        progress: Progress = silent,
        *,
        cluster: Cluster | None = None,
        window: int | None = None,
        max_bytes: int | None = None,
        chunks: bool = True,
        wait: bool = False,
        lent_cpus: float = 0,
        spare_bundles: int = 0,
    ) -> None:
        self.progress = progress
        self.cluster = cluster
        self.window = window
        self.max_bytes = max_bytes
        self.chunk_limit = _CHUNK_LIMIT if chunks else 1
        self.wait = wait  # for nodes that an autoscaler may add
        self.lent_cpus = lent_cpus
        self.spare_bundles = spare_bundles
        self.cpu_seconds = 0.0

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
        cluster = self.cluster or connect()
        if self.lent_cpus and gpus:
            # A GPU cannot be lent as processors are: a task that asks Ray for none sees none of
            # its node's GPUs, or all of them. So this worker does such jobs itself, on its own.
            serial = SerialPool(self.progress)
            yield from serial.map(fn, jobs, shared=shared, label=label, quiet=quiet)
            return
        total = len(jobs) if isinstance(jobs, Sized) else None
        sizes = _Sizes(self.window, self.max_bytes, self.chunk_limit, total)
        slots = self._slots(cluster, cpus, gpus, retries, label)
        reference = [] if shared is None else [ray.put(shared)]
        left, given, reruns = iter(jobs), 0, 0
        sent: deque[Sent] = deque()
        with (silent if quiet else self.progress)(label, total) as bar:
            try:
                while True:
                    slots.refresh(sent)
                    sizes.slots, sizes.max_bytes = slots.count, self.max_bytes or slots.max_bytes
                    while slots.has_room() and sizes.has_room(sent):
                        chunk = list(itertools.islice(left, sizes.next_chunk(given)))
                        if not chunk:
                            break
                        new = Sent(fn, chunk, reference, given, len(chunk))
                        slots.send(new)
                        sent.append(new)
                        given += len(chunk)
                    if not sent:
                        return
                    if not slots.wait(sent[0]):
                        continue
                    result = self._result(sent[0], bar, label)
                    first = sent.popleft().first
                    sizes.learn(result)
                    self.cpu_seconds += result.cpu_seconds
                    if result.attempt:
                        reruns += 1
                        bar.note(f"{reruns} run again after a lost worker")
                    for out in unpack(result):
                        yield out
                        bar.advance()
                    if result.failure is not None:
                        _raise(result.failure, first + result.count, label, bar)
            finally:
                # Reached with tasks under way after an error or when the reader stops early, which
                # may be after the cluster was left: a call to Ray would then start one.
                for one in sent if ray.is_initialized() else ():
                    ray.cancel(one.reference, force=False)

    def _slots(
        self, cluster: Cluster, cpus: float, gpus: float, retries: int, label: str
    ) -> ClusterSlots | LentSlots:
        options = {"max_retries": retries, "retry_exceptions": False, "name": label}
        if self.lent_cpus:
            return LentSlots(
                self.lent_cpus, cpus, spare_bundles=self.spare_bundles, options=options
            )
        return ClusterSlots(cluster, cpus, gpus, wait=self.wait, options=options)

    def _result(self, one: Sent, bar: Bar, label: str) -> ChunkResult:
        try:
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


def _named(one: Sent, label: str) -> str:
    last = one.first + one.count - 1
    return (
        f"job {one.first} of {label!r}"
        if one.count == 1
        else f"jobs {one.first} to {last} of {label!r}"
    )


def _raise(failure: Failure, index: int, label: str, bar: Bar) -> None:
    bar.note(f"job {index} failed")
    if isinstance(failure.error, DprayError):
        raise failure.error  # one finished sentence: nothing to add
    failure.error.add_note(f"raised by job {index} of {label!r}, in a worker")
    raise failure.error from RemoteTraceback(failure.trace)
