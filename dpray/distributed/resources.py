"""What a cluster has and how many workers fit on it: counted node by node, not in total.

A worker lives on one node: two nodes of one GPU each cannot run a worker of two.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import ray
from ray._private.state import available_resources_per_node

_THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
_SLACK = 1e-9  # thirds of a CPU do not add up to one exactly


@dataclass(frozen=True)
class Node:
    cpus: float
    gpus: float
    memory: int

    def holds(self, cpus: float, gpus: float) -> int:
        """How many workers of this size fit on the node at once."""
        sizes = [(self.cpus, cpus), (self.gpus, gpus)]
        if cpus <= 0 and gpus <= 0:
            sizes = [(self.cpus, 1.0)]  # a task that asks for nothing still needs a core to run on
        return min(math.floor(has / asks + _SLACK) for has, asks in sizes if asks > 0)


@dataclass(frozen=True)
class Resources:
    machines: tuple[Node, ...]
    object_store: int

    @property
    def cpus(self) -> float:
        return sum(node.cpus for node in self.machines)

    @property
    def gpus(self) -> float:
        return sum(node.gpus for node in self.machines)

    @property
    def memory(self) -> int:
        return sum(node.memory for node in self.machines)

    @property
    def nodes(self) -> int:
        return len(self.machines)

    def slots(self, cpus: float, gpus: float) -> int:
        """How many workers of this size fit on the whole cluster at once."""
        return sum(node.holds(cpus, gpus) for node in self.machines)

    def __str__(self) -> str:
        total = f"{many(self.cpus, 'cpu')}, {many(self.gpus, 'gpu')} on {many(self.nodes, 'node')}"
        if self.nodes < 2:
            return total
        largest = max(self.machines, key=lambda node: (node.gpus, node.cpus))
        return f"{total} (at most {many(largest.cpus, 'cpu')}, {many(largest.gpus, 'gpu')} on one)"


def measure() -> Resources:
    """The living nodes of the cluster this process is connected to."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    machines = tuple(
        Node(has.get("CPU", 0.0), has.get("GPU", 0.0), int(has.get("memory", 0))) for has in alive
    )
    return Resources(machines, int(sum(has.get("object_store_memory", 0) for has in alive)))


def measure_free() -> Resources:
    """What nobody holds of every living node. Ray's count is some tenths of a second behind."""
    free = available_resources_per_node().values()
    machines = tuple(Node(has.get("CPU", 0.0), has.get("GPU", 0.0), 0) for has in free)
    return Resources(machines, 0)


def store_beside(cpus: float) -> int:
    """Bytes of this node's object store that go with so many of its processors."""
    here = ray.get_runtime_context().get_node_id()
    has: dict[str, float] = next(n["Resources"] for n in ray.nodes() if n["NodeID"] == here)
    return int(has.get("object_store_memory", 0) * min(1.0, cpus / max(has.get("CPU", 0), cpus)))


def many(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


def threads_per_worker(cpus: float) -> int:
    """Threads for a worker that holds `cpus`: more than its share makes all of them crawl."""
    return max(1, int(cpus + _SLACK))


def worker_environment(cpus: float) -> dict[str, str]:
    """The environment that keeps the numeric libraries of a worker to its share of the cores."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads_per_worker(cpus)))


def limit_threads(cpus: float) -> None:
    """Keeps this process to its share, whether its libraries are loaded already or not."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    os.environ.update(worker_environment(cpus))
    threads = threads_per_worker(cpus)
    threadpool_limits(threads)
    torch.set_num_threads(threads)
