"""A ledger as one task sees it: charges go to the task's own part, under the task's name.

The task's records are a part of the training records, cut by label. Whoever opens a `LedgerPart`
vouches that what is asked through it reads records of that part alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from dpray.errors import BadInput
from dpray.privacy.accounting import Adjacency, Cost
from dpray.privacy.ledger import Entry, Ledger
from dpray.privacy.parts import TRAINING
from dpray.privacy.queries import PaidQuery, Q

T = TypeVar("T")


class LedgerPart(Ledger):
    """Looks like a ledger to a method and keeps nothing itself: all is on the `whole`.

    Guarantee: the noise of a query is keyed by its name, and the name begins with the task's, so
    the same method run for two tasks never draws the same noise. With replace-one neighbours
    parts of one ledger are not disjoint, and none is opened.
    """

    def __init__(self, whole: Ledger, name: str, part: str) -> None:
        if whole.adjacency is Adjacency.REPLACE:
            raise BadInput(
                "tasks cut by label need add-or-remove-one neighbours: a replaced record may "
                "change its label and so be in two tasks; nothing was charged"
            )
        self.whole, self.task, self.part = whole, name, part
        self.budget, self.adjacency, self.header = whole.budget, whole.adjacency, whole.header
        # Lists that the whole adds to; they are never replaced.
        self.entries, self.heads, self.asked = whole.entries, whole.heads, whole.asked
        self.path, self.wait_for_all = whole.path, whole.wait_for_all

    @property
    def head(self) -> str:
        return self.whole.head

    @head.setter
    def head(self, value: str) -> None:
        raise AttributeError("the head of a part is that of the whole ledger")

    def cost(self, extra: Entry | None = None) -> Cost:
        return self.whole.cost(extra)

    def calibrate(self, make_query: Callable[[float], Q], *, part: str = TRAINING) -> Q:
        self._check(part)
        query = self.whole.calibrate(lambda noise: self._named(make_query(noise)), part=self.part)
        return self._unnamed(query)

    def calibrate_together(
        self, make_queries: Callable[[float], Sequence[Q]], *, part: str = TRAINING
    ) -> list[Q]:
        self._check(part)
        queries = self.whole.calibrate_together(
            lambda noise: [self._named(query) for query in make_queries(noise)], part=self.part
        )
        return [self._unnamed(query) for query in queries]

    def pay(self, query: Q, *, part: str = TRAINING) -> PaidQuery[Q]:
        """As `Ledger.pay`; the query comes back under the task's name, which keys its noise."""
        self._check(part)
        return self.whole.pay(self._named(query), part=self.part)

    def _named(self, query: Q) -> Q:
        return _renamed(query, f"{self.task}/{query.name}")

    def _unnamed(self, query: Q) -> Q:
        return _renamed(query, query.name.removeprefix(f"{self.task}/"))

    def _check(self, part: str) -> None:
        if part != TRAINING:
            raise BadInput(f"{self.task} asks its own training records alone, not {part!r}")


def _renamed(query: T, name: str) -> T:
    return dataclasses.replace(query, name=name)  # type: ignore[type-var]
