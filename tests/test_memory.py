"""Memory that was freed goes back to the system, also that of threads which are gone."""

from pathlib import Path
from threading import Thread

from dpray.memory import give_back


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_a_thread_freed_is_given_back():
    kept = []

    def work() -> None:
        """Small pieces, every hundredth of which stays: nothing large is freed as a whole."""
        pieces = [bytes(2000) for _ in range(100_000)]
        kept.extend(pieces[::100])

    thread = Thread(target=work)
    thread.start()
    thread.join()
    before = resident()
    give_back()
    assert before - resident() > 50_000_000
