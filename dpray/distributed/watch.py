"""Progress of a worker, seen from the driver: a small file in the run's folder.

Rank 0 writes where it stands and what it has to say; the driver shows it. Through the folder
and not through Ray: it needs nothing but what the run needs anyway.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from dpray.progress import Bar, Progress
from dpray.runs import RunFolder
from dpray.storage import write_whole

_SECONDS = 0.5


class FileProgress:
    """A `Progress` that writes to the run's folder instead of a terminal."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.state: dict[str, Any] = {"label": "", "total": None, "done": 0, "note": ""}
        self.written = 0.0

    def __call__(self, label: str, total: int | None) -> AbstractContextManager[Bar]:
        return self._bar(label, total)

    @contextmanager
    def _bar(self, label: str, total: int | None) -> Iterator[Bar]:
        self.state = {"label": label, "total": total, "done": 0, "note": ""}
        yield self
        self._write()

    def advance(self, count: int = 1) -> None:
        self.state["done"] += count
        if time.monotonic() - self.written > _SECONDS:
            self._write()

    def note(self, text: str) -> None:
        self.state["note"] = text

    def say(self, text: str) -> None:
        with open(self.folder.path / "notes.txt", "a") as file:
            file.write(text + "\n")

    def _write(self) -> None:
        write_whole(self.folder.path / "progress.json", json.dumps(self.state).encode())
        self.written = time.monotonic()


@contextmanager
def watch(folder: RunFolder, progress: Progress, say: Callable[[str], None]) -> Iterator[None]:
    """Shows what the worker writes for as long as the block runs."""
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(folder, progress, say, over), daemon=True)
    for name in ("progress.json", "notes.txt"):
        (folder.path / name).unlink(missing_ok=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _show(
    folder: RunFolder, progress: Progress, say: Callable[[str], None], over: threading.Event
) -> None:
    label, done, said, bar = "", 0, 0, None
    with ExitStack() as stack:
        while True:
            last = over.wait(_SECONDS)  # look once more after the end: the last word counts
            for line in _read(folder, "notes.txt").splitlines()[said:]:
                say(line)
                said += 1
            state = json.loads(_read(folder, "progress.json") or "{}")
            if state:
                if bar is None or state["label"] != label:
                    stack.close()
                    label, done = state["label"], 0
                    bar = stack.enter_context(progress(label, state["total"]))
                bar.note(state["note"])
                bar.advance(state["done"] - done)
                done = state["done"]
            if last:
                return


def _read(folder: RunFolder, name: str) -> str:
    try:
        return (folder.path / name).read_text()
    except FileNotFoundError:
        return ""
