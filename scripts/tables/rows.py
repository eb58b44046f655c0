"""A row of a table is a run specification, its seeds, and the published figure beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpray.errors import BadInput
from dpray.spec import RunSpec

# What runs when nothing else is asked for. Other groups take long and have to be named.
BUDGET = "budget"
EVERY_GROUP = "all"
PUBLISHED_EPOCHS = 1_000  # of a network on a small set


@dataclass(frozen=True)
class PublishedFigure:
    """What others printed. It was not measured here."""

    accuracy: float | None  # a share, of the test set; None: the source measured none
    noise_multiplier: float | None = None
    epsilon: float | None = None  # None: the source states none
    others: str = ""  # further figures of the same row, in words
    holds: bool = False  # its epsilon withstands recomputing: it may stand on an axis of epsilon
    true_cost: str = ""  # what its configuration costs by recomputing, where a table tells it

    def __str__(self) -> str:
        text = self.others
        if self.accuracy is not None:
            text = f"{100 * self.accuracy:.1f}" + (f" ({text})" if text else "")
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
    also: tuple[str, ...] = ()  # further groups that need this very run
    # What everybody may see, as `dpray run --public` takes it, for a method that reads such data.
    public: str | None = None
    # Architectures to train on the release of the first seed, each with its published accuracy, a
    # share, or None where there is none.
    architectures: Mapping[str, float | None] = field(default_factory=dict)
    epochs: int = PUBLISHED_EPOCHS  # of these architectures, where no other number is asked for

    def spec(self, seed: int) -> RunSpec:
        return RunSpec(
            method=self.method,
            dataset=self.dataset,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            seed=seed,
            settings=dict(self.settings),
            public=self.public,
        )


@dataclass(frozen=True)
class Column:
    """A metric of the runs: mean and deviation, times `scale`, to so many digits."""

    title: str
    metric: str
    scale: float = 100.0
    digits: int = 2
    only_if_measured: bool = False  # left out where no row has it
    within: str | None = None  # the metric that is the deviation within a run, shown where one ran


HEADLINE = Column("test accuracy, %", "test_accuracy")
LR, MLP = Column("LR", "lr_accuracy"), Column("MLP", "mlp_accuracy")
DOMAIN_FID = Column("domain FID", "domain_fid", scale=1.0, digits=1)


@dataclass(frozen=True)
class Figure:
    """A picture of a table. `draw` is given the table, the name of the dataset, all rows as they
    were measured, the folder of what is kept, and the path to write; it says whether it did."""

    title: str
    draw: Callable[[Any, str, Sequence[Any], Path, Path], bool]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    rows: Callable[[str], list[Row]]  # the rows on a dataset, by its name
    notes: Sequence[str] = ()
    datasets: tuple[str, ...] = ("mnist",)  # the first is the one the source used
    columns: tuple[Column, ...] = (HEADLINE, LR, MLP, DOMAIN_FID)  # the first says if a row has run
    classifier: str = "a CNN"  # whose accuracy is the test accuracy of a synthesizer
    published: str = "published accuracy, %"  # what the column of published figures holds
    # What became of a finished run, in a word, from what is kept of it: a column of its own.
    outcome: Callable[[Mapping[str, Any]], str] | None = None
    # By the end of the file's name; these come after the pictures of every table, or in their
    # place where the name is the same.
    figures: Mapping[str, Figure] = field(default_factory=dict)
    # What is done besides the runs of these rows, for the pictures: jobs that keep their results
    # in the folder. Those that are kept already are left out.
    besides: Callable[[Sequence[Row], Path], Sequence[Any]] = lambda rows, folder: ()


def chosen(rows: Sequence[Row], group: str, pattern: str | None) -> list[Row]:
    """The rows of a group whose label is `pattern`, or else those it matches as an expression."""
    groups = [*dict.fromkeys(name for row in rows for name in (row.group, *row.also)), EVERY_GROUP]
    if group not in groups:
        raise BadInput(f"no group {group!r}; choose from: {', '.join(groups)}")
    inside = [row for row in rows if group in (row.group, *row.also, EVERY_GROUP)]
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
