"""Work that costs time and nothing else, for measuring the pool: workers import it from here."""

from __future__ import annotations

import time
from typing import Any

import torch


def nothing(job: int, shared: Any) -> int:
    return job


def multiply(job: int, rounds: int) -> tuple[float, float]:
    """`rounds` matrix products. Gives the processor and the wall seconds they took."""
    values = torch.randn(192, 192, generator=torch.Generator().manual_seed(job))
    values /= torch.linalg.matrix_norm(values, 2)
    cpu, wall = time.process_time(), time.perf_counter()
    product = values
    for _ in range(rounds):
        product = product @ values
        product /= product.abs().max()
    return time.process_time() - cpu, time.perf_counter() - wall
