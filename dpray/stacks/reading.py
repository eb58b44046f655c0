"""The subsets that a step draws, in chunks: records, latent noise and encoders.

What comes next is read by a thread while the step under way is computed, also across steps for as
long as the encoders that will be drawn are known already. Private side: who is drawn is secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from dpray.privacy.noise import RunKey
from dpray.privacy.subset_queries import SubsetSums
from dpray.privacy.subset_sums import drawn_subsets
from dpray.stacks.stack import Stack
from dpray.stacks.states import Frozen, Latents
from dpray.stacks.subsets import SubsetBatch, Subsets

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Chunk:
    """Some of the drawn subsets, side by side."""

    numbers: Tensor
    batch: SubsetBatch
    noise: Tensor
    encoders: Stack


class Chunks:
    """The chunks of one step after another, read ahead."""

    def __init__(
        self,
        query: SubsetSums,
        subsets: Subsets,
        state: Frozen,
        latents: Latents,
        key: RunKey,
        size: int,
    ) -> None:
        self.query, self.subsets, self.state = query, subsets, state
        self.latents, self.key, self.size = latents, key, size
        self._until = -1  # the steps before it are being read
        self._coming: Iterator[Chunk] = iter(())

    def of(self, step: int) -> Iterator[Chunk]:
        """The chunks of `step`. Steps are asked for in their order, each to its end."""
        if step >= self._until:
            self._until = self.state.reads_until(step, self.query.steps)
            self._coming = ahead(self._read(step, self._until))
        for _ in self._parts(step):
            yield next(self._coming)

    def _parts(self, step: int) -> tuple[Tensor, ...]:
        drawn = drawn_subsets(self.query, self.key, step, self.subsets.present)
        return self.subsets.by_size(drawn).split(self.size) if len(drawn) else ()

    def _read(self, first: int, until: int) -> Iterator[Chunk]:
        device = self.latents.device
        for step in range(first, until):
            for numbers in self._parts(step):
                batch = self.subsets.batch(numbers)
                encoders = {k: v.to(device) for k, v in self.state.read(numbers).items()}
                noise = self.latents("decoder", step, batch.ids)
                yield Chunk(numbers, batch.to(device), noise, encoders)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by a thread while the one before it is worked on."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
