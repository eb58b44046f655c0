"""Which step of the matching starts a new network, and after which one it is trained.

An iteration takes a fresh network through `outer` ages: at every age it is asked `queries` private
gradients, and between two ages it is trained on the synthetic images. A step is one query.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    iterations: int  # fresh networks
    outer: int  # ages of a network
    queries: int  # private gradients at each age
    pixel_steps: int  # of the images for each gradient: it is paid for, so its reuse is free
    inner: int  # passes over the images between two ages

    @property
    def steps(self) -> int:
        """Queries in all: what is charged."""
        return self.iterations * self.outer * self.queries

    def iteration(self, step: int) -> int:
        return step // (self.outer * self.queries)

    def starts_network(self, step: int) -> bool:
        return step % (self.outer * self.queries) == 0

    def trains_network(self, step: int) -> bool:
        """Whether the network grows older after this step; after its last age it is dropped."""
        done = step % (self.outer * self.queries) + 1
        return done % self.queries == 0 and done < self.outer * self.queries
