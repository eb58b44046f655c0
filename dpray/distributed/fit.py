"""Runs Ray's long call in a thread of its own, so that Ctrl-C is heard at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ray


def in_a_thread(fit: Callable[[], object]) -> None:
    """`fit()`, but Ctrl-C is a KeyboardInterrupt at once, and takes the workers along.

    In the main thread Ray would put a handler of its own in place, which waits for the workers,
    for minutes where they are busy, and then ends the process without a word.
    """
    failures: list[BaseException] = []

    def work() -> None:
        try:
            fit()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        ray.shutdown()  # the workers end with their driver; what they kept lies in their folders
        raise
    if failures:
        raise failures[0]
