"""The pool on a real Ray: equal to `SerialPool`, bounded, and whole after a node is lost."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lent_jobs
import numpy as np
import pool_jobs
import pytest
import ray
import torch
from ray._private.node import Node
from ray.cluster_utils import Cluster as ManyNodes
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpray.distributed import auth
from dpray.distributed.cluster import Cluster, connect, disconnect
from dpray.distributed.pool import RayPool
from dpray.distributed.resources import measure_free
from dpray.errors import BudgetExceeded, ClusterFailed
from dpray.pool import SerialPool
from dpray.progress import Bar


class Watched:
    """A progress that remembers what was shown."""

    def __init__(self) -> None:
        self.done = 0
        self.notes: list[str] = []

    def advance(self, count: int = 1) -> None:
        self.done += count

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def __call__(self, label: str, total: int | None) -> Iterator[Bar]:
        self.total = total
        yield self


def references() -> int:
    """How many objects of Ray this process holds, finished or not."""
    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


def test_results_equal_those_of_the_serial_pool_bit_for_bit_and_in_order(
    local_ray: Cluster,
) -> None:
    shared, seeds = torch.full((24, 24), 0.1), [seed * 7 for seed in range(300)]
    ours = list(RayPool().map(pool_jobs.draw, seeds, shared=shared))
    reference = list(SerialPool().map(pool_jobs.draw, seeds, shared=shared))
    assert len(ours) == 300
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


def test_ten_thousand_tiny_jobs_stay_within_the_window(local_ray: Cluster) -> None:
    watched, window = Watched(), 6
    list(RayPool().map(pool_jobs.tiny, range(50)))  # starts the workers
    before, others = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, references()
    most, started = 0, time.monotonic()
    for position, out in enumerate(
        RayPool(watched, window=window).map(pool_jobs.tiny, range(10_000))
    ):
        assert out == 2 * position
        most = max(most, references() - others) if position % 20 == 0 else most
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"10,000 in {time.monotonic() - started:.1f} s, at most {most} objects, +{grown} kB")
    assert watched.done == watched.total == 10_000
    assert 0 < most <= window
    assert grown < 50_000


def test_jobs_are_taken_from_an_iterator_only_as_there_is_room(local_ray: Cluster) -> None:
    taken: list[int] = []
    jobs = (taken.append(job) or job for job in range(1_000_000))
    results = RayPool(window=4).map(pool_jobs.slow, jobs, shared=0.06)
    assert [next(results) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    results.close()
    assert len(taken) <= 10


def test_a_cpu_can_be_shared_by_several_tasks(local_ray: Cluster, tmp_path: Path) -> None:
    """On two processors three jobs wait for each other: they can only meet if they share one."""
    shared = (str(tmp_path), 3)
    assert all(RayPool().map(pool_jobs.meets_others, range(3), shared=shared, cpus=0.25))


@pytest.mark.parametrize("cpus", [0.5, 1, 2])
def test_a_worker_has_as_many_threads_as_whole_cpus(local_ray: Cluster, cpus: float) -> None:
    threads = max(1, int(cpus))
    assert list(RayPool().map(pool_jobs.threads, [0], cpus=cpus)) == [(threads, str(threads))]


def test_an_error_of_dpray_arrives_as_itself_after_the_results_before_it(
    local_ray: Cluster,
) -> None:
    watched, got = Watched(), []
    with pytest.raises(BudgetExceeded, match=r"^the budget is spent$"):
        got.extend(RayPool(watched).map(pool_jobs.overspend, range(10)))
    results = RayPool().map(pool_jobs.overspend, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert watched.done == 3 and watched.notes == ["job 3 failed"]


def test_any_other_exception_names_its_job_and_shows_where_it_was_raised(
    local_ray: Cluster,
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(RayPool().map(pool_jobs.divide, range(10), label="teachers"))
    assert caught.value.__notes__ == ["raised by job 3 of 'teachers', in a worker"]
    assert "pool_jobs.py" in str(caught.value.__cause__)


def test_shared_is_put_into_the_store_once_and_read_there(local_ray: Cluster) -> None:
    shared, before = np.ones(2**20), references()
    results = RayPool(window=4).map(pool_jobs.address_of_shared, range(40), shared=shared)
    first = next(results)
    assert references() - before <= 4 + 1
    seen = [first, *results]
    assert all(not writeable and total == 2**20 for _, writeable, total in seen)
    deadline = time.monotonic() + 10  # workers give their hold on it back in their own time
    while references() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert references() <= before


def test_a_reader_that_stops_early_cancels_the_rest(local_ray: Cluster) -> None:
    results = RayPool(window=8).map(pool_jobs.slow_but_first, range(8), shared=30.0)
    assert next(results) == 0
    results.close()
    started = time.monotonic()
    assert list(RayPool().map(pool_jobs.tiny, range(4))) == [0, 2, 4, 6]
    assert time.monotonic() - started < 15


def test_a_lost_worker_is_replaced_and_only_the_bar_says_so(
    local_ray: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    watched = Watched()
    got = list(RayPool(watched).map(pool_jobs.leave_once, range(6), shared=str(tmp_path)))
    assert got == list(range(6))
    assert watched.notes[-1].endswith("run again after a lost worker")
    time.sleep(1)  # Ray's own words come a little later
    assert capfd.readouterr() == ("", "")


def test_a_job_that_always_takes_its_worker_down_is_refused_in_one_line(
    local_ray: Cluster,
) -> None:
    with pytest.raises(ClusterFailed, match=r"^job 0 of 'tasks' failed with its last") as caught:
        list(RayPool().map(pool_jobs.leave, [0], retries=1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cpus", "gpus"), [(64, 0), (1, 1)])
def test_a_task_that_no_node_can_run_is_refused_in_one_line(
    local_ray: Cluster, cpus: float, gpus: float
) -> None:
    started = time.monotonic()
    with pytest.raises(ClusterFailed, match=r"the cluster has 2 cpus, 0 gpus on 1 node") as caught:
        list(RayPool().map(pool_jobs.tiny, [1], cpus=cpus, gpus=gpus))
    assert "\n" not in str(caught.value) and time.monotonic() - started < 5


def test_results_larger_than_the_object_store_go_through_it(local_ray: Cluster) -> None:
    store = ray.cluster_resources()["object_store_memory"]
    whole = 0
    for job, out in enumerate(RayPool(window=30).map(pool_jobs.big, range(30), shared=10)):
        assert out[:8].tolist() == pool_jobs.big(job, 1)[:8].tolist()
        out[0] = 0  # ours to change, like those of the serial pool
        whole += out.nbytes
    assert whole == 300 * 2**20 > 2 * store


@pytest.fixture(scope="module")
def head() -> Iterator[ManyNodes]:
    disconnect()
    auth.guard_local()
    # A lost node is noticed after three seconds and not after fifteen.
    watchful = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    cluster = ManyNodes(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": 80 * 2**20,
            "_system_config": watchful,
        },
    )
    connect(cluster.address)
    yield cluster
    disconnect()
    cluster.shutdown()
    auth.forget()


@pytest.fixture
def nodes(head: ManyNodes) -> Iterator[ManyNodes]:
    """A head of one CPU, to which a test adds a second node."""
    yield head
    for node in list(head.worker_nodes):
        head.remove_node(node)


def add_ready_node(nodes: ManyNodes, folder: Path, cpus: int) -> Node:
    """Another node whose workers have started: on a busy machine that takes seconds, in which
    the head could finish all the jobs of a test alone."""
    node = nodes.add_node(num_cpus=cpus, object_store_memory=80 * 2**20)
    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    meet = ray.remote(num_cpus=1, scheduling_strategy=there)(pool_jobs.meets_others)
    folder.mkdir()
    assert all(ray.get([meet.remote(job, (str(folder), cpus)) for job in range(cpus)]))
    deadline = time.monotonic() + 60
    while measure_free().slots(1, 0) < cpus:  # Ray's count is behind
        assert time.monotonic() < deadline, "the workers of the new node never came free"
        time.sleep(0.1)
    return node


def test_a_node_removed_during_a_fan_out_costs_only_what_it_had_in_hand(
    nodes: ManyNodes, tmp_path: Path
) -> None:
    second = add_ready_node(nodes, tmp_path / "ready", cpus=1)
    watched, window, jobs = Watched(), 16, 200
    results = RayPool(watched, window=window).map(
        pool_jobs.logged, range(jobs), shared=str(tmp_path)
    )
    got = [next(results) for _ in range(60)]

    def runs() -> list[tuple[int, str]]:
        lines = (tmp_path / "runs").read_text().splitlines()
        return [(int(job), node) for job, node in map(str.split, lines)]

    def unread_there() -> set[int]:
        return {job for job, node in runs() if node == second.node_id and job >= len(got)}

    # Results that were not read yet are what is lost with the second node: wait for some.
    deadline = time.monotonic() + 60
    while len(unread_there()) < 3 and len(got) < jobs - window and time.monotonic() < deadline:
        got.append(next(results))
        time.sleep(0.1)
    time.sleep(1.5)
    read, lost = len(got), unread_there()
    assert lost, "the second node never held a result"
    nodes.remove_node(second, allow_graceful=False)
    got.extend(results)
    counts = Counter(job for job, _ in runs())
    again = {job for job, times in counts.items() if times > 1}
    print(
        f"{jobs} jobs, node removed after {read} were read with {len(lost)} unread results on it:"
    )
    print(f"{len(again)} jobs run again, {sum(counts.values())} runs in all, window {window}")
    assert [job for job, _ in got] == list(range(jobs))
    assert all(data == np.random.default_rng(job).bytes(200_000) for job, data in got)
    assert set(counts) == set(range(jobs))
    assert lost <= again and len(again) <= window
    assert all(job >= read for job in again) and max(counts.values()) == 2


def test_a_worker_that_lends_its_processor_also_uses_free_ones_of_other_nodes(
    nodes: ManyNodes, tmp_path: Path
) -> None:
    holder = lent_jobs.hold(cpus=1)
    second = add_ready_node(nodes, tmp_path / "ready", cpus=2)
    spans = ray.get(holder.map.remote(lent_jobs.place, range(60), lent_cpus=1, shared=0.2)).results
    at_once = [[node for s, e, node in spans if s <= then < e] for then, _, _ in spans]
    assert max(map(len, at_once)) == 3
    assert max(there.count(second.node_id) for there in at_once) == 2
    assert max(there.count(nodes.head_node.node_id) for there in at_once) == 1


def test_what_a_lost_node_had_in_hand_is_done_with_lent_processors(
    nodes: ManyNodes, tmp_path: Path
) -> None:
    """No processor is left that Ray could give: those tasks would wait for ever."""
    holder, jobs = lent_jobs.hold(cpus=1, patience=0.5), 60
    second = add_ready_node(nodes, tmp_path / "ready", cpus=2)
    mapped = holder.map.remote(pool_jobs.logged, range(jobs), lent_cpus=1, shared=str(tmp_path))
    deadline = time.monotonic() + 60
    while second.node_id not in (log.read_text() if (log := tmp_path / "runs").exists() else ""):
        assert time.monotonic() < deadline, "the second node was never used"
        time.sleep(0.1)
    nodes.remove_node(second, allow_graceful=False)
    results = ray.get(mapped, timeout=120).results
    assert [job for job, _ in results] == list(range(jobs))
    assert all(data == np.random.default_rng(job).bytes(200_000) for job, data in results)
