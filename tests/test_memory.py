"""What was freed is used again, and goes back to the system when it is asked to."""

import subprocess
import sys
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


FREEING = """
import sys
from pathlib import Path
import torch
from dpray.memory import reuse_freed_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "reused":
    reuse_freed_blocks()
block = torch.zeros(16_000_000)  # 64 MB: above what glibc ever keeps by itself
held = resident()
del block
print(held - resident())
"""


def freed_bytes_that_left(how: str) -> int:
    command = [sys.executable, "-c", FREEING, how]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_large_blocks_are_kept_for_use_again_instead_of_going_back_to_the_system():
    assert freed_bytes_that_left("as usual") > 60_000_000
    assert freed_bytes_that_left("reused") < 1_000_000
