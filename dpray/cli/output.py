"""Printing: aligned tables and notes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def say(text: str) -> None:
    """A note to the person, beside the results."""
    print(text, file=sys.stderr, flush=True)


def hush(text: str) -> None:
    """Drops notes, but not warnings: `--quiet` must not hide what may be a mistake."""
    if text.startswith("warning"):
        say(text)


def print_json(value: Any) -> None:
    print(json.dumps(value, allow_nan=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    for row in (header, *cells):
        line = "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        print(line.rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "-"
    return True
