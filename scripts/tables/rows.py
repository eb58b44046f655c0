"""A row of a table is a run specification, its seeds, and the published figure beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpray.errors import BadInput
from dpray.spec import RunSpec

# What runs when nothing else is asked for. Other groups take long and have to be named.
BUDGET = "budget"
EVERY_GROUP = "all"


@dataclass(frozen=True)
class PublishedFigure:
    """What others printed. It was not measured here."""

    accuracy: float  # a share, of the test set
    noise_multiplier: float | None = None
    epsilon: float | None = None  # None: the source states none
    others: str = ""  # further figures of the same row, in words
    holds: bool = False  # its epsilon withstands recomputing: it may stand on an axis of epsilon

    def __str__(self) -> str:
        text = f"{100 * self.accuracy:.1f}"
        if self.others:
            text += f" ({self.others})"
        if self.noise_multiplier is not None:
            text += f" at noise {self.noise_multiplier:g}"
        if self.epsilon is not None:
            return f"{text}, epsilon {self.epsilon:g}"
        return f"{text}, no epsilon published" if self.noise_multiplier is not None else text


@dataclass(frozen=True, kw_only=True)
class Row:
    label: str
    series: str  # rows of one series are one line in the picture
    method: str
    dataset: str
    epsilon: float | None = None
    noise_multiplier: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    published: PublishedFigure | None = None
    group: str = BUDGET
    # Architectures to train on the release of the first seed, each with its published accuracy, a
    # share, or None where there is none.
    architectures: Mapping[str, float | None] = field(default_factory=dict)

    def spec(self, seed: int) -> RunSpec:
        return RunSpec(
            method=self.method,
            dataset=self.dataset,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            seed=seed,
            settings=dict(self.settings),
        )


@dataclass(frozen=True)
class Column:
    """A metric of the runs: mean and deviation, times `scale`, to so many digits."""

    title: str
    metric: str
    scale: float = 100.0
    digits: int = 2


HEADLINE = Column("test accuracy, %", "test_accuracy")
LR, MLP = Column("LR", "lr_accuracy"), Column("MLP", "mlp_accuracy")
DOMAIN_FID = Column("domain FID", "domain_fid", scale=1.0, digits=1)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    rows: Callable[[str], list[Row]]  # the rows on a dataset, by its name
    notes: Sequence[str] = ()
    datasets: tuple[str, ...] = ("mnist",)  # the first is the one the source used
    columns: tuple[Column, ...] = (HEADLINE, LR, MLP, DOMAIN_FID)  # the first says if a row has run
    classifier: str = "a CNN"  # whose accuracy is the test accuracy of a synthesizer


def chosen(rows: Sequence[Row], group: str, pattern: str | None) -> list[Row]:
    """The rows of a group whose label is `pattern`, or else those it matches as an expression."""
    groups = [*dict.fromkeys(row.group for row in rows), EVERY_GROUP]
    if group not in groups:
        raise BadInput(f"no group {group!r}; choose from: {', '.join(groups)}")
    inside = [row for row in rows if group in (row.group, EVERY_GROUP)]
    if pattern is None:
        return inside
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise BadInput(f"--only {pattern!r} is not a regular expression: {error}") from None
    named = [row for row in inside if row.label == pattern]
    found = named or [row for row in inside if expression.search(row.label)]
    if not found:
        labels = "; ".join(row.label for row in inside)
        raise BadInput(f"no row of group {group!r} matches {pattern!r}; its rows are: {labels}")
    return found
