"""A metric and where it came from. What cannot name a public source is never logged.

Sources: `public test set` (records everybody may know), `noisy hold-out` (a charged release),
`release alone` (what follows from what was released), `ledger` (what was spent), `cost` (time),
and `private`, which the logger refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    PUBLIC_TEST = "public test set"
    NOISY_HOLD_OUT = "noisy hold-out"
    RELEASE = "release alone"
    LEDGER = "ledger"
    COST = "cost"
    PRIVATE = "private"


@dataclass(frozen=True)
class Metric:
    name: str
    value: float
    source: Source
