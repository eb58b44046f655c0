"""Names beside the marks of a plot: in columns, moved apart where they would touch.

All lengths are points. Marks of one epsilon stand above each other and their names to the right
of them. Where the names of one epsilon would run over the marks of the next, both share a column
to the right of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LETTER = 0.56  # of the font size: about as wide as a letter is
_LEADER = 16.0  # from the mark to its name


@dataclass(frozen=True)
class Label:
    name: str  # of labels in one column with the same name only one is shown
    text: str
    colour: str
    x: float  # of the mark
    y: float


@dataclass(frozen=True)
class Placed:
    label: Label
    x: float  # where the text begins
    y: float  # its middle


def width_of(text: str, font: float) -> float:
    return len(text) * _LETTER * font + _LEADER


def columns(labels: Sequence[Label], font: float) -> list[list[Label]]:
    """Labels that share a column, from left to right."""
    found: list[list[Label]] = []
    for label in sorted(labels, key=lambda label: label.x):
        if found and label.x < _end(found[-1], font):
            found[-1].append(label)
        else:
            found.append([label])
    return found


def _end(column: Sequence[Label], font: float) -> float:
    """Where the longest name of a column comes to its end."""
    return max(label.x for label in column) + max(width_of(label.text, font) for label in column)


def shown_by_column(labels: Sequence[Label], font: float) -> list[tuple[float, list[Label]]]:
    """Where each column begins and what it shows, from the lowest up.

    A name is shown once, at the mark nearest to the text and the highest of those: from one further
    to the left its line would cross the others.
    """
    shown = []
    for column in columns(labels, font):
        ascending = sorted(column, key=lambda label: label.y)
        last = {label.name: label for label in sorted(ascending, key=lambda one: round(one.x))}
        start = max(label.x for label in column) + _LEADER  # right of all marks, named or not
        shown.append((start, [label for label in ascending if last[label.name] is label]))
    return shown


def place(labels: Sequence[Label], font: float, highest: float) -> list[Placed]:
    """Each as near to the height of its mark as its neighbours allow, between 0 and `highest`."""
    placed = []
    gap = needed(1, font)
    for start, column in shown_by_column(labels, font):
        heights = spread([label.y for label in column], gap, highest)
        for number, (label, height) in enumerate(zip(column, heights, strict=True)):
            placed.append(Placed(label, start, max(height, gap * (number + 0.5))))
    return placed


def needed(count: int, font: float) -> float:
    """The height that so many names need."""
    return 1.25 * font * count


def spread(heights: Sequence[float], gap: float, highest: float) -> list[float]:
    """Ascending heights moved as little as need be to lie `gap` apart, none above `highest`."""
    blocks: list[list[float]] = []  # each: sum of the wished first positions, how many
    for height in heights:
        blocks.append([height, 1])
        while len(blocks) > 1 and _start(blocks[-2]) + gap * blocks[-2][1] > _start(blocks[-1]):
            wished, count = blocks.pop()
            before = blocks[-1]
            before[0] += wished - gap * before[1] * count
            before[1] += count
    placed = [_start(b) + gap * i for b in blocks for i in range(int(b[1]))]
    for i in range(len(placed) - 1, -1, -1):
        limit = highest if i == len(placed) - 1 else placed[i + 1] - gap
        placed[i] = min(placed[i], limit)
    return placed


def _start(block: Sequence[float]) -> float:
    return block[0] / block[1]
