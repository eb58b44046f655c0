"""Where the next task of a pool goes, and how many may be under way.

`ClusterSlots`: to the cluster, where Ray keeps it until a node has room.

`LentSlots`: for a pool inside a Ray Train worker. Such a worker holds its processors also while
it waits for results, and Ray gives them to nobody else: a task that asked for them would wait for
ever. So the worker lends them itself. Tasks on its own node ask Ray for nothing and are counted
here; what the rest of the cluster has to spare is asked for besides. A trial of Ray Tune may also
hold bundles that were reserved for its tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from dpray.distributed.chunks import run_chunk
from dpray.distributed.cluster import Cluster
from dpray.distributed.resources import Node, measure_free, store_beside

_LOOK_AGAIN = 10.0  # seconds between two looks at what the cluster has
_LOOK_FOR_FREE = 3.0  # and at what is free on it, which changes sooner
_SETTLED = 0.5  # seconds after which Ray's count of what is free knows of a task
# A task that another node took is run here when it is out for longer than this and twice the
# time of the slowest: whoever held the processor it waits for may hold it for days.
_PATIENCE = 10.0
_STORE_SHARE = 0.25  # of the object store, for results under way


@dataclass
class Sent:
    """A task under way: some jobs in a row, of which `first` is the number of the first."""

    fn: Callable[[Any, Any], Any]
    jobs: Sequence[Any]  # kept only while they may have to be sent again
    shared: Sequence[ray.ObjectRef]
    first: int
    count: int
    reference: ray.ObjectRef = field(init=False)
    lent: bool = False
    since: float = field(default_factory=time.monotonic)


class ClusterSlots:
    """All of the cluster, whoever else uses it: Ray keeps what has to wait."""

    def __init__(
        self, cluster: Cluster, cpus: float, gpus: float, *, wait: bool, options: dict[str, Any]
    ) -> None:
        self.cluster, self.cpus, self.gpus, self.wait_for_nodes = cluster, cpus, gpus, wait
        self.task = ray.remote(run_chunk).options(num_cpus=cpus, num_gpus=gpus, **options)
        self.count = 1
        self.max_bytes: int | None = None
        self.looked = -_LOOK_AGAIN

    def refresh(self, sent: Iterable[Sent]) -> None:
        """Counts again, now and then. Refuses what no node can run any more."""
        if time.monotonic() - self.looked <= _LOOK_AGAIN:
            return
        self.cluster.require(
            workers=1,
            cpus_per_worker=self.cpus,
            gpus_per_worker=self.gpus,
            wait=self.wait_for_nodes,
        )
        has = self.cluster.resources()
        self.count = max(1, has.slots(self.cpus, self.gpus))
        self.max_bytes = int(_STORE_SHARE * has.object_store) or None
        self.looked = time.monotonic()

    def has_room(self) -> bool:
        return True

    def send(self, one: Sent) -> None:
        one.reference = self.task.remote(one.fn, one.jobs, one.shared, self.cpus)
        one.jobs = ()

    def wait(self, head: Sent) -> bool:
        """Whether the result of `head` is there, after some seconds at most."""
        return bool(ray.wait([head.reference], timeout=_LOOK_AGAIN)[0])


class LentSlots:
    """The processors of this worker, lent for as long as it waits, and what is free elsewhere."""

    def __init__(
        self, lent_cpus: float, cpus: float, *, spare_bundles: int = 0, options: dict[str, Any]
    ) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        task = ray.remote(run_chunk)
        self.lent_task = task.options(num_cpus=0, scheduling_strategy=here, **options)
        # Said outright: left out, it could mean the placement group of this worker, which is full.
        self.free_task = task.options(num_cpus=cpus, scheduling_strategy="DEFAULT", **options)
        # Bundles of one processor each, in the placement group of this worker.
        group = get_current_placement_group()
        self.spare_slots = spare_bundles if group is not None and cpus <= 1 else 0
        if group is not None and self.spare_slots:
            inside = PlacementGroupSchedulingStrategy(group)
            self.spare_task = task.options(num_cpus=cpus, scheduling_strategy=inside, **options)
        self.cpus = cpus
        # A task that wants more than there is gets what there is, as in the worker itself.
        self.lent_cpus = min(cpus, lent_cpus)
        self.lent_slots = max(1, Node(lent_cpus, 0.0, 0).holds(cpus, 0.0))
        self.free_slots = 0
        self.max_bytes = int(_STORE_SHARE * store_beside(lent_cpus)) or None
        self.lent: dict[ray.ObjectRef, Sent] = {}  # those that have not ended
        self.spare: dict[ray.ObjectRef, Sent] = {}
        self.free: dict[ray.ObjectRef, Sent] = {}
        self.longest = 0.0
        self.looked = self.freed = -_LOOK_FOR_FREE

    @property
    def count(self) -> int:
        return self.lent_slots + self.spare_slots + self.free_slots

    def refresh(self, sent: Iterable[Sent]) -> None:
        """Notes what ended, counts what is free, and takes back what waits in vain."""
        under_way = [*self.lent, *self.spare, *self.free]
        if under_way:
            self._note(ray.wait(under_way, num_returns=len(under_way), timeout=0)[0])
        if time.monotonic() - self.looked > _LOOK_FOR_FREE:
            self._look()
        latest = time.monotonic() - _PATIENCE - 2 * self.longest
        for position, one in enumerate(sent):
            if len(self.lent) >= self.lent_slots:
                break
            if one.lent or one.since > latest:
                continue
            # The result of the first may have been there and gone with its node.
            is_gone = position == 0 and not ray.wait([one.reference], timeout=0)[0]
            if is_gone or one.reference in self.free:
                self._take_back(one)

    def has_room(self) -> bool:
        return (
            len(self.lent) < self.lent_slots
            or len(self.spare) < self.spare_slots
            or len(self.free) < self.free_slots
        )

    def send(self, one: Sent) -> None:
        if len(self.lent) < self.lent_slots:
            self._lend(one)
        elif len(self.spare) < self.spare_slots:
            one.reference = self.spare_task.remote(one.fn, one.jobs, one.shared, self.cpus)
            self.spare[one.reference] = one
        else:
            one.reference = self.free_task.remote(one.fn, one.jobs, one.shared, self.cpus)
            self.free[one.reference] = one

    def wait(self, head: Sent) -> bool:
        """Whether the result of `head` is there. Also back when another task made room."""
        others = [ref for ref in (*self.lent, *self.spare, *self.free) if ref != head.reference]
        ended, _ = ray.wait([head.reference, *others], num_returns=1, timeout=_LOOK_FOR_FREE)
        self._note(ended)
        return head.reference in ended

    def _lend(self, one: Sent) -> None:
        one.reference = self.lent_task.remote(one.fn, one.jobs, one.shared, self.lent_cpus)
        one.lent, one.jobs = True, ()
        self.lent[one.reference] = one

    def _note(self, ended: Iterable[ray.ObjectRef]) -> None:
        now = time.monotonic()
        for reference in ended:
            if reference in self.free:
                self.freed = now
            held = next((h for h in (self.lent, self.spare, self.free) if reference in h), {})
            one = held.pop(reference, None)
            if one is not None:
                self.longest = max(self.longest, now - one.since)

    def _look(self) -> None:
        """How many tasks besides the lent ones have a processor, or would get one at once."""
        self.looked = now = time.monotonic()
        free = measure_free().slots(self.cpus, 0.0)
        settled = sum(now - one.since > _SETTLED for one in self.free.values())
        # While tasks come and go Ray's count is behind, and too low by those that just ended.
        come_and_go = now - self.freed < _SETTLED
        least = self.free_slots if come_and_go else len(self.free)
        self.free_slots = max(least, settled + free)

    def _take_back(self, one: Sent) -> None:
        ray.cancel(one.reference, force=False)
        self.free.pop(one.reference, None)
        self.free_slots = max(0, self.free_slots - 1)
        one.since = time.monotonic()
        self._lend(one)
