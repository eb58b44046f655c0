"""The way onto Ray: `connect()` joins a cluster or starts a local one, `disconnect()` leaves it.

An address comes from the argument, from RAY_ADDRESS, or from the Ray this process runs in; with
none of them a local Ray is started, guarded by a token of its own. Nothing is written to
standard output. Whatever hinders is a `ClusterFailed` of one line, within about 15 seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import services
from ray.autoscaler.sdk import request_resources

from dpray.distributed import auth, messages, probe
from dpray.distributed.resources import Resources, many, measure
from dpray.distributed.resources import threads_per_worker as threads_per_worker
from dpray.distributed.resources import worker_environment as worker_environment
from dpray.errors import ClusterFailed

_SAY_EVERY = 30.0
_current: Cluster | None = None


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Cluster:
    """A Ray this process is connected to. `local` says that it was started for this process."""

    address: str
    local: bool

    def resources(self) -> Resources:
        return measure()

    def require(
        self,
        *,
        workers: int = 1,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 0,
        wait: bool = False,
        timeout: float = 600.0,
        poll: float = 2.0,
        say: Callable[[str], None] = _to_stderr,
    ) -> None:
        """Refuses what the nodes cannot hold; with `wait`, lets an autoscaler add some first."""
        has = self.resources()
        if has.slots(cpus_per_worker, gpus_per_worker) >= workers:
            return
        size = f"{many(cpus_per_worker, 'cpu')} and {many(gpus_per_worker, 'gpu')}"
        asked = f"asked for {many(workers, 'worker')} of {size}{' each' if workers > 1 else ''}"
        if not wait:
            raise ClusterFailed(f"{asked}; the cluster has {has}")
        # Without this an autoscaler would only see the tasks, after they were submitted.
        request_resources(bundles=[{"CPU": cpus_per_worker, "GPU": gpus_per_worker}] * workers)
        try:
            started, said = time.monotonic(), -_SAY_EVERY
            while has.slots(cpus_per_worker, gpus_per_worker) < workers:
                waited = time.monotonic() - started
                if waited > timeout:
                    raise ClusterFailed(
                        f"{asked}; after {waited:.0f} seconds the cluster still has {has}"
                    )
                if waited - said >= _SAY_EVERY:
                    say(f"{asked}; the cluster has {has}; waiting for more nodes")
                    said = waited
                time.sleep(poll)
                has = self.resources()
        finally:
            request_resources(bundles=[])


def connect(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    object_store_memory: int | None = None,
    quiet: bool = True,
) -> Cluster:
    """The cluster at `address`, or the one at hand, or a local one. A second call is free.

    `num_cpus` and `object_store_memory` size a local Ray. Unless `quiet`, what workers print is
    forwarded to the standard error of this process.
    """
    global _current
    wanted = address or os.environ.get("RAY_ADDRESS") or None
    if ray.is_initialized():
        return _reused(address)
    if wanted is None and "RAY_RAYLET_PID" in os.environ:
        wanted = "auto"  # a process that a Ray worker started
    level = logging.ERROR if quiet else logging.INFO
    options: dict[str, Any] = {"log_to_driver": not quiet, "logging_level": level}
    if wanted is None or wanted == "local":
        auth.guard_local()
        # None would join whatever Ray another program started on this machine; "local" does not.
        where = "local"
        options |= {"num_cpus": num_cpus, "object_store_memory": object_store_memory}
        options |= {"include_dashboard": False}
    else:
        where = _found() if wanted == "auto" else wanted
        auth.use_given()
        probe.check(where)
        where = probe.canonical(where)
    messages.keep_off_standard_output(quiet)
    before = os.environ.pop("RAY_ADDRESS", None)  # Ray lets it override what it is told
    try:
        ray.init(where, **options)
    except Exception as error:
        auth.forget()
        text = " ".join(str(error.__cause__ or error).split())
        doing = "start a local Ray" if where == "local" else f"join Ray at {where}"
        raise ClusterFailed(f"cannot {doing}: {text[:240]}") from error
    finally:
        if before is not None:
            os.environ["RAY_ADDRESS"] = before
    _current = Cluster(ray.get_runtime_context().gcs_address, local=where == "local")
    return _current


def disconnect() -> None:
    """Leaves the cluster `connect` joined, or stops the local one. Otherwise does nothing."""
    global _current
    if _current is not None:
        ray.shutdown()
        auth.forget()
        _current = None


def _reused(address: str | None) -> Cluster:
    global _current
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local") and probe.canonical(address or "") != here:
        raise ClusterFailed(f"already connected to Ray at {here}; disconnect before {address}")
    if _current is not None and _current.address == here:
        return _current
    return Cluster(here, local=False)


def _found() -> str:
    try:
        return str(services.canonicalize_bootstrap_address("auto"))
    except ConnectionError as error:
        raise ClusterFailed(
            "no Ray runs on this machine; give the host:port of its head, or `ray start` a node"
        ) from error
