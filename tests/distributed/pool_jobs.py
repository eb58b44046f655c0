"""Functions that the pool's tests send to workers, which import them by this module's name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from dpray.errors import BudgetExceeded


def draw(seed: int, shared: Any) -> torch.Tensor:
    """Random numbers and a product of them, which depends on the last bit of each."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(24, 24, generator=generator)
    return values @ values.T + (0 if shared is None else shared)


def tiny(job: int, shared: Any) -> int:
    return job * 2


def slow(job: int, seconds: float) -> int:
    time.sleep(seconds)
    return job


def span(job: int, seconds: float) -> tuple[float, float]:
    started = time.time()
    time.sleep(seconds)
    return started, time.time()


def meets_others(job: int, shared: tuple[str, int]) -> bool:
    """Whether so many jobs, this one among them, came to be under way before any of them ended."""
    folder, wanted = Path(shared[0]), shared[1]
    (folder / str(job)).touch()
    deadline = time.monotonic() + 90
    while len(list(folder.iterdir())) < wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(list(folder.iterdir())) >= wanted


def slow_but_first(job: int, seconds: float) -> int:
    for _ in range(0 if job == 0 else int(seconds * 100)):
        time.sleep(0.01)
    return job


def overspend(job: int, shared: Any) -> int:
    if job == 3:
        raise BudgetExceeded("the budget is spent")
    return job


def divide(job: int, shared: Any) -> float:
    return 1 / (job - 3)


def big(job: int, megabytes: int) -> np.ndarray:
    return np.random.default_rng(job).integers(0, 256, megabytes * 2**20, dtype=np.uint8)


def address_of_shared(job: int, shared: np.ndarray) -> tuple[int, bool, float]:
    """Whether `shared` is the store's own copy (then it cannot be written), and its sum."""
    return os.getpid(), shared.flags.writeable, float(shared.sum())


def threads(job: int, shared: Any) -> tuple[int, str]:
    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def logged(job: int, folder: str) -> tuple[int, bytes]:
    """Says in a file that it ran and where, and gives enough bytes to need the store."""
    time.sleep(0.06)
    data = np.random.default_rng(job).bytes(200_000)
    with (Path(folder) / "runs").open("a") as file:
        file.write(f"{job} {ray.get_runtime_context().get_node_id()}\n")
    return job, data


def leave_once(job: int, folder: str) -> int:
    """Takes its worker down the first time that job 2 is run."""
    mark = Path(folder) / "left"
    if job == 2 and not mark.exists():
        mark.touch()
        os._exit(1)
    return job


def leave(job: int, shared: Any) -> None:
    os._exit(1)
