"""A pool inside a worker that holds every processor: it lends them to its tasks while it waits.

Without lending such a pool would wait for ever, so each of these tests also says that it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lent_jobs
import pool_jobs
import pytest
import ray
import torch

from dpray.distributed.cluster import connect
from dpray.errors import BudgetExceeded, ClusterFailed
from dpray.pool import SerialPool

Map = Callable[..., lent_jobs.Mapped]


@pytest.fixture(scope="module")
def mapped(_one_ray: list[bool]) -> Iterator[Map]:
    """Maps in a worker that holds both processors of the cluster."""
    connect("local", num_cpus=2, object_store_memory=100 * 2**20)
    holder = lent_jobs.hold(cpus=2)

    def run(*words: Any, **named: Any) -> lent_jobs.Mapped:
        result: lent_jobs.Mapped = ray.get(holder.map.remote(*words, **named), timeout=60)
        return result

    yield run
    ray.kill(holder)


def most_at_once(spans: list[tuple[float, ...]]) -> int:
    return max(sum(start <= then < end for start, end, *_ in spans) for then, *_ in spans)


def test_a_worker_that_holds_all_processors_gets_the_results_of_the_serial_pool(
    mapped: Map,
) -> None:
    shared, seeds = torch.full((24, 24), 0.1), list(range(40))
    ours = mapped(pool_jobs.draw, seeds, shared=shared)
    reference = list(SerialPool().map(pool_jobs.draw, seeds, shared=shared))
    assert len(ours.results) == ours.done == 40
    assert all(torch.equal(a, b) for a, b in zip(ours.results, reference, strict=True))


@pytest.mark.parametrize(("cpus", "most"), [(1, 2), (2, 1), (8, 1)])
def test_no_more_tasks_run_at_once_than_the_lent_processors_hold(
    mapped: Map, cpus: float, most: int
) -> None:
    spans = mapped(pool_jobs.span, range(8), shared=0.2, cpus=cpus).results
    assert len(spans) == 8
    assert most_at_once(spans) <= most


def test_two_tasks_run_at_once_on_two_lent_processors(mapped: Map, tmp_path: Path) -> None:
    assert all(mapped(pool_jobs.meets_others, range(2), shared=(str(tmp_path), 2), cpus=1).results)


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 2), (8, 2)])
def test_a_lent_task_has_the_threads_of_its_share(mapped: Map, cpus: float, threads: int) -> None:
    assert mapped(pool_jobs.threads, [0], cpus=cpus).results == [(threads, str(threads))]


def test_an_error_of_a_lent_task_arrives_after_the_results_before_it(mapped: Map) -> None:
    ours = mapped(pool_jobs.overspend, range(10))
    assert isinstance(ours.error, BudgetExceeded) and str(ours.error) == "the budget is spent"
    assert ours.results == [0, 1, 2]
    assert ours.notes == ["job 3 failed"]


def test_a_lost_process_is_replaced_and_one_that_is_always_lost_refused(
    mapped: Map, tmp_path: Path
) -> None:
    ours = mapped(pool_jobs.leave_once, range(6), shared=str(tmp_path))
    assert ours.results == list(range(6))
    assert ours.notes[-1].endswith("run again after a lost worker")
    refused = mapped(pool_jobs.leave, [0], retries=0)
    assert isinstance(refused.error, ClusterFailed)


def test_processor_time_of_lent_tasks_is_counted(mapped: Map) -> None:
    busy = mapped(lent_jobs.spin, range(4), shared=0.5).cpu_seconds
    asleep = mapped(pool_jobs.slow, range(4), shared=0.5).cpu_seconds
    assert busy >= 2.0
    assert asleep < 0.5 * busy  # not none: Ray's own threads run beside the jobs


def test_jobs_that_want_a_gpu_are_done_by_the_worker_itself(mapped: Map) -> None:
    ours = mapped(lent_jobs.process, range(3), gpus=1)
    assert ours.results == [ours.pid] * 3
    assert ours.pid not in mapped(lent_jobs.process, range(3)).results
