"""dpray: differentially private training, image synthesis and tuning on Ray.

`dpray.run("dp-sgd", data="mnist", epsilon=3)` is the whole of the Python interface for a first
run; the command `dpray` says the same in words. Importing the package imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dpray.api import run

__all__ = ["__version__", "run"]


def __dir__() -> list[str]:
    return sorted([*globals(), "run"])


def __getattr__(name: str) -> Any:
    if name == "run":
        from dpray.api import run

        return run
    raise AttributeError(f"module 'dpray' has no attribute {name!r}")
