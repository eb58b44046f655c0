"""What a worker does for the pool: a few jobs one after another, their results as one object.

Results travel as bytes of our own, so that their size is known, the driver gets arrays it may
write to, and nothing stays pinned in the object store once it was fetched.
"""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle

from dpray.distributed.resources import limit_threads, worker_environment
from dpray.memory import reuse_freed_blocks

# A value of `shared` that was slow to unpack stays for the next chunk. One is kept at most, and
# none that unpacks at once: those are windows into the object store and would keep it full.
_SLOW_TO_UNPACK = 0.02
_kept: tuple[str, Any] | None = None
_limited_to: float | None = None


@dataclass(frozen=True)
class Failure:
    """An exception that `fn` raised, and the lines that say where."""

    error: BaseException
    trace: str


@dataclass(frozen=True)
class ChunkResult:
    """Results of the jobs up to the first that failed, if one did."""

    results: bytes  # a pickled list
    failure: Failure | None
    count: int
    seconds: float
    cpu_seconds: float  # of all threads; without the start of the process
    attempt: int  # 0 unless the worker or node of an earlier attempt was lost


def run_chunk(
    fn: Callable[[Any, Any], Any],
    jobs: Sequence[Any],
    shared: Sequence[ray.ObjectRef],
    cpus: float,
) -> ChunkResult:
    """`fn(job, shared)` for every job. `shared` is a list of one reference, or of none."""
    global _limited_to
    # Ray sets the variables anew for every task, by what the task asked of it: a lent one, nothing.
    os.environ.update(worker_environment(cpus))
    if _limited_to != cpus:
        limit_threads(cpus)
        reuse_freed_blocks()
        _limited_to = cpus
    cpu_started = time.process_time()
    value = _unpacked(shared[0]) if shared else None
    started = time.perf_counter()
    results: list[Any] = []
    failure = None
    for job in jobs:
        try:
            results.append(fn(job, value))
        except Exception as error:
            failure = _failure(error)
            break
    # Packing counts: a job whose result is large is not a tiny job.
    packed = cloudpickle.dumps(results, protocol=5)
    seconds = time.perf_counter() - started
    _free_gpu()
    cpu_seconds = time.process_time() - cpu_started
    return ChunkResult(packed, failure, len(results), seconds, cpu_seconds, _attempt())


def unpack(chunk: ChunkResult) -> list[Any]:
    results: list[Any] = pickle.loads(chunk.results)
    return results


def _unpacked(reference: ray.ObjectRef) -> Any:
    global _kept
    if _kept is not None and _kept[0] == reference.hex():
        return _kept[1]
    _kept = None
    started = time.perf_counter()
    value = ray.get(reference)
    if time.perf_counter() - started > _SLOW_TO_UNPACK:
        _kept = (reference.hex(), value)
    return value


def _failure(error: Exception) -> Failure:
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        # Some exceptions pickle but do not come back; better to learn that here.
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failure(error.with_traceback(None), trace)


def _attempt() -> int:
    core: Any = ray._private.worker.global_worker.core_worker  # type: ignore[attr-defined]
    return int(core.get_current_task_attempt_number())


def _free_gpu() -> None:
    # The process lives on for the next chunk; memory it only caches would be missing elsewhere.
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
