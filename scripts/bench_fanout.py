"""What fanning out over Ray costs: tiny jobs per second, and how busy long jobs keep the cores.

Ten thousand jobs that do nothing go through the pool, through a bare loop of Ray tasks with the
same window, and through the serial pool. Then equal jobs of some seconds each, whose length alone
in one worker is measured in the same run, are held against the ideal: jobs x seconds / cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import ray

from dpray.distributed.cluster import connect, disconnect
from dpray.distributed.pool import RayPool
from dpray.distributed.spin import multiply, nothing
from dpray.pool import SerialPool


def bare_loop(jobs: int, window: int) -> None:
    """The least a careful user would write: as many tasks under way as the pool has."""
    task, sent = ray.remote(nothing), deque[ray.ObjectRef]()
    for job in range(jobs):
        if len(sent) >= window:
            assert ray.get(sent.popleft()) == job - window
        sent.append(task.remote(job, None))
    ray.get(list(sent))


def per_second(jobs: int, run: Callable[[], Any], repeats: int) -> list[float]:
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        rates.append(jobs / (time.perf_counter() - started))
    return rates


def use_up(results: Iterable[Any]) -> None:
    assert all(position == out for position, out in enumerate(results))


def tiny_jobs(jobs: int, cores: int, repeats: int) -> dict[str, Any]:
    window = 4 * cores  # what the pool takes by default
    pools = {
        "RayPool": lambda: use_up(RayPool().map(nothing, range(jobs))),
        "RayPool, one job a task": lambda: use_up(RayPool(chunks=False).map(nothing, range(jobs))),
        "bare ray.remote loop": lambda: bare_loop(jobs, window),
        "SerialPool": lambda: use_up(SerialPool().map(nothing, range(jobs))),
    }
    rates = {name: per_second(jobs, run, repeats) for name, run in pools.items()}
    return {"jobs": jobs, "window": window, "per_second": rates}


def long_jobs(jobs: int, seconds: float, cores: int) -> dict[str, float]:
    pool, probe = RayPool(), 200
    cost = statistics.median(alone(pool, probe) for _ in range(3)) / probe
    rounds = max(1, round(seconds / cost))
    single = alone(pool, rounds)
    list(pool.map(multiply, range(4 * cores), shared=probe))  # Ray ends workers that idle
    started = time.perf_counter()
    times = list(pool.map(multiply, range(jobs), shared=rounds))
    wall = time.perf_counter() - started
    return {
        "jobs": jobs,
        "cores": cores,
        "single_cpu_seconds": single,
        "wall_seconds": wall,
        "efficiency": jobs * single / cores / wall,
        # What others on the machine took shows here: cpu below wall, slots held all the same.
        "mean_cpu_seconds": statistics.mean(cpu for cpu, _ in times),
        "mean_wall_seconds": statistics.mean(took for _, took in times),
        "load_average": os.getloadavg()[0],
        "busy": sum(took for _, took in times) / cores / wall,
    }


def alone(pool: RayPool, rounds: int) -> float:
    """Processor seconds of one job with the machine to itself."""
    return next(iter(pool.map(multiply, [0], shared=rounds)))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--address", help="host:port of a cluster (default: a local Ray)")
    parser.add_argument("--cpus", type=int, help="cores of the local Ray (default: all)")
    parser.add_argument("--tiny", type=int, default=10_000, help="tiny jobs (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of each (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=12, help="long jobs (default: %(default)s)")
    parser.add_argument(
        "--task-seconds", type=float, default=2.0, help="of a long job (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    words = parser.parse_args()

    cores = int(connect(words.address, num_cpus=words.cpus).resources().cpus)
    try:
        list(RayPool().map(multiply, range(4 * cores), shared=2000))  # starts and warms the workers
        tiny = tiny_jobs(words.tiny, cores, words.repeats)
        long = long_jobs(words.tasks, words.task_seconds, cores)
    finally:
        disconnect()
    if words.json:
        print(json.dumps({"tiny": tiny, "long": long}))
        return
    print(f"{tiny['jobs']:,} tiny jobs, window {tiny['window']} tasks")
    for name, rates in tiny["per_second"].items():
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        print(f"  {name:<24} {statistics.median(rates):>12,.0f} jobs/s  ({spread})")
    print(
        f"{long['jobs']} jobs of {long['single_cpu_seconds']:.2f} cpu seconds on {cores} cores: "
        f"{long['wall_seconds']:.2f} s, efficiency {long['efficiency']:.1%} "
        f"(slots held {long['busy']:.1%} of the time; "
        f"a job took {long['mean_cpu_seconds']:.2f} cpu seconds within "
        f"{long['mean_wall_seconds']:.2f}; load average {long['load_average']:.1f})"
    )


if __name__ == "__main__":
    main()
