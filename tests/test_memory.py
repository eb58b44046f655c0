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


TRAINING = """
import resource, sys
import torch
from dpray.memory import reuse_freed_blocks
from dpray.models.architectures import convnet

if sys.argv[1] == "reused":
    reuse_freed_blocks()
network, images = convnet((1, 28, 28), 10, width=32), torch.rand(128, 1, 28, 28)
for step in range(8):
    if step == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network(images).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    command = [sys.executable, "-c", TRAINING, how]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_large_blocks_are_used_again_instead_of_being_cleared_by_the_system():
    assert page_faults("reused") < page_faults("as usual") / 5
