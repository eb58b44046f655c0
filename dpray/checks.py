"""Settings that cannot work, refused in one line before anything is charged.

Settings that are None are left to their method, which then chooses itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpray.errors import BadInput


def at_least_one(settings: object, *names: str) -> None:
    _refuse(settings, names, lambda value: value >= 1, "must be at least 1")


def above_zero(settings: object, *names: str) -> None:
    _refuse(settings, names, lambda value: 0 < value < math.inf, "must be above 0")


def below_one(settings: object, *names: str) -> None:
    _refuse(settings, names, lambda value: 0 <= value < 1, "must be at least 0 and below 1")


def between(settings: object, least: float, most: float, *names: str) -> None:
    within = f"must be from {least:g} to {most:g}"
    _refuse(settings, names, lambda value: least <= value <= most, within)


def _refuse(
    settings: object, names: tuple[str, ...], works: Callable[[float], bool], words: str
) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not works(value):
            raise BadInput(f"{name} {value:g} {words}")
