"""Progress of long work: a bar with rate and time left on a terminal, silence elsewhere.

A `Progress` is called with a label and a total and gives a bar to advance. Only public facts
go on a bar (counts, rates, the budget that was charged), never a loss or an accuracy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from tqdm import tqdm


class Bar(Protocol):
    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None:
        """Shows `text` beside the bar, for example the budget that was charged."""
        ...


Progress = Callable[[str, int | None], AbstractContextManager[Bar]]


class _SilentBar:
    def advance(self, count: int = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class _TqdmBar:
    def __init__(self, bar: tqdm) -> None:
        self.bar = bar

    def advance(self, count: int = 1) -> None:
        self.bar.update(count)

    def note(self, text: str) -> None:
        self.bar.set_postfix_str(text, refresh=False)


@contextmanager
def silent(label: str, total: int | None) -> Iterator[Bar]:
    yield _SilentBar()


@contextmanager
def terminal(label: str, total: int | None) -> Iterator[Bar]:
    """A bar on standard error, so that standard output stays clean for `--json`."""
    # Away from a terminal (a job's log) one line a half minute is plenty.
    interval = 0.2 if sys.stderr.isatty() else 30.0
    with tqdm(
        total=total, desc=label, file=sys.stderr, mininterval=interval, dynamic_ncols=True
    ) as bar:
        yield _TqdmBar(bar)
