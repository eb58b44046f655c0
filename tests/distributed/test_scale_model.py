"""The arithmetic of scripts/scale_model.py: what it must say where the answer is known."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "scale_model.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_model", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


scale_model = _load()
FREE = {
    "slowest": 1.0,
    "per_task": 0.0,
    "start": 0.0,
    "result_bytes": 0,
    "bandwidth": math.inf,
    "efficiency": 1.0,
}


def costs(**changes: Any) -> Any:
    return scale_model.Costs(**{"task": 2.0, **FREE, **changes})


def test_one_worker_takes_the_work_and_its_start() -> None:
    assert scale_model.wall_seconds(100, 1, costs()) == pytest.approx(200)
    assert scale_model.wall_seconds(100, 1, costs(start=3.0)) == pytest.approx(203)


def test_without_overhead_the_speedup_is_the_number_of_workers() -> None:
    rows = scale_model.predict(1024, costs())
    assert [row.speedup for row in rows] == pytest.approx([row.workers for row in rows])


def test_more_workers_never_take_longer_until_the_driver_is_the_bound() -> None:
    rows = scale_model.predict(2500, costs(per_task=0.01, slowest=1.3, efficiency=0.9, start=1.0))
    seconds = [row.seconds for row in rows]
    assert all(b <= a for a, b in itertools.pairwise(seconds))
    assert rows[0].bound == "work"
    assert rows[-1].bound == "driver"
    assert rows[-1].seconds == pytest.approx(1.0 + 25.0 + 0.3 * 2.0)


def test_more_workers_than_tasks_help_nothing() -> None:
    assert scale_model.wall_seconds(64, 64, costs()) == scale_model.wall_seconds(64, 512, costs())


def test_large_results_are_limited_by_the_network() -> None:
    slow = costs(result_bytes=1_000_000, bandwidth=1e6)
    assert scale_model.wall_seconds(50, 512, slow) == pytest.approx(50)


def test_a_round_that_is_not_full_counts_as_one() -> None:
    assert scale_model.wall_seconds(5, 4, costs()) == pytest.approx(4.0)
