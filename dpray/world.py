"""Who else works on this run: one process, or N that add their sums together.

Privacy code asks a `World` for its rank and for a sum over all ranks and never learns who
started the processes. `SOLO` is the world of one; `distributed/` supplies the others by
initialising `torch.distributed` before `current_world` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of `value` over all ranks, the same bits on every rank."""
        if self.size == 1:
            return value
        if dist.get_backend() == "nccl" and not value.is_cuda:
            there = value.cuda()  # nccl adds up what lies on a GPU and nothing else
            dist.all_reduce(there)
            return there.to(value.device)
        dist.all_reduce(value)
        return value

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on rank 0, on every rank. Its errors are raised on every rank too.

        Such an error carries `everywhere`: no other rank is left waiting for this one.
        """
        if self.size == 1:
            return make()
        box: list[tuple[T | None, Exception | None]] = [(None, None)]
        if self.is_first:
            try:
                box = [(make(), None)]
            except Exception as error:
                box = [(None, error)]
        dist.broadcast_object_list(box, src=0)
        value, failure = box[0]
        if failure is not None:
            failure.everywhere = True  # type: ignore[attr-defined]
            raise failure
        return value  # type: ignore[return-value]

    def share(self, value: Tensor) -> Tensor:
        """Rank 0's value on every rank, to the bit, whatever the others computed."""
        if self.size == 1:
            return value
        there = value.cuda() if dist.get_backend() == "nccl" else value
        dist.broadcast(there, src=0)
        return there.to(value.device)

    def barrier(self) -> None:
        # An all-reduce instead of dist.barrier: it works alike on gloo and nccl groups.
        self.sum(torch.zeros(1))


SOLO = World()


def current_world() -> World:
    """The world of the running process group, or `SOLO` where there is none."""
    if dist.is_available() and dist.is_initialized():
        return World(rank=dist.get_rank(), size=dist.get_world_size())
    return SOLO
