"""The table of methods: one file each, and the file is found by being there."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from dpray.errors import unknown

_TABLE: dict[str, type[Any]] = {}
T = TypeVar("T", bound=type[Any])


def register(name: str) -> Callable[[T], T]:
    """Puts a class into the table under `name`, which is also its file's name."""

    def put(method: T) -> T:
        method.name = name
        _TABLE[name] = method
        return method

    return put


def table() -> dict[str, type[Any]]:
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_TABLE.items()))


def find(name: str) -> type[Any]:
    methods = table()
    if name not in methods:
        raise unknown("method", name, methods)
    return methods[name]
