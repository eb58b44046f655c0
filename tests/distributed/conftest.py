"""One small local Ray for the tests of this folder; workers can import the modules beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpray.distributed import cluster

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session", autouse=True)
def workers_import_from_here() -> Iterator[None]:
    """Ray's workers inherit the environment of the process that starts Ray."""
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", HERE if not before else f"{HERE}{os.pathsep}{before}")
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
            patch.delenv(name, raising=False)
        # Ray's workers yield to everything else: beside the rest of the suite they would starve.
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(scope="session")
def _one_ray(workers_import_from_here: None) -> Iterator[list[bool]]:
    yield [True]
    cluster.disconnect()


@pytest.fixture
def local_ray(_one_ray: list[bool]) -> cluster.Cluster:
    """Two CPUs and 100 MB of object store, started once (and again if a test stopped it)."""
    return cluster.connect("local", num_cpus=2, object_store_memory=100 * 2**20)


@pytest.fixture
def no_ray() -> Iterator[None]:
    """For tests that start a Ray of their own: whatever runs here is stopped, before and after."""
    cluster.disconnect()
    yield
    cluster.disconnect()
