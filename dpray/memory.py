"""How much memory is free, how much a network takes, and what becomes of what was freed."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

# Of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_KEPT = 1 << 30  # bytes that may lie free at the end of the heap


def free_memory(device: str = "cpu") -> int:
    """Bytes of this machine's memory, or this container's, or of a GPU's, that nobody uses."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info()[0])
    free = _read_meminfo()
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 1))
    return free


@cache
def reuse_freed_blocks() -> None:
    """Lets large tensors take the place of those that were freed, in all of this process.

    By itself glibc gets every large block from the system and gives it back at once, and the system
    clears each of its pages when it is first written to. Training a ConvNet of width 128 on a
    processor spends half of its time on that. What is free is given back by `give_back`, or where
    more than a gigabyte of it lies at the end of the heap.
    """
    with suppress(OSError, AttributeError):  # another C library has its own ways
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Gives what is no longer needed back to the system, for a process that goes on to other work.

    C libraries keep what was freed for later, each thread for itself: a worker that runs one trial
    after another, each in a thread of its own, would grow with every one of them.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library: it keeps what it keeps
        ctypes.CDLL(None).malloc_trim(0)


def _read_meminfo() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    # What is free is not told everywhere; half of what there is mostly is.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def kept_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """What a forward pass keeps for its backward pass, the parameters themselves left out."""
    held = {p.data_ptr() for p in parameters}
    kept: dict[int, int] = {}

    def count(value: Tensor) -> Tensor:
        if value.data_ptr() not in held:
            kept[value.data_ptr()] = value.numel() * value.element_size()
        return value

    with torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        result = forward()
    del result
    return sum(kept.values())
