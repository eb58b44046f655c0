"""Which commit a run was measured at: a kept row says it, and so does the table made of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


@cache
def this_commit() -> str | None:
    """Of the checkout these scripts lie in, `-dirty` where files differ; None outside of one."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        told = subprocess.run(words, cwd=_HERE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None if told.returncode == 0 else None


def commits_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """The commits of these runs, each once, as a sentence; nothing where none is known."""
    known = dict.fromkeys(run["commit"] for run in runs if run.get("commit"))
    return f"Measured at {', '.join(f'`{commit}`' for commit in known)}." if known else ""
