"""`execute(spec)` on Ray Train workers: the same run, its records spread over N processes.

Ray Train starts the workers and their process group; `execute` does the rest and does not know
of Ray. Rank 0 alone touches the run's folder, which lies on storage that the driver can read;
the secret key reaches the other ranks through the process group and never through Ray. When a
worker dies, Ray starts the group again and the run goes on from its last checkpoint with the
same key: the steps that are repeated are the same steps, and nothing is charged twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from dpray import errors
from dpray.distributed.cluster import Cluster, connect, threads_per_worker
from dpray.distributed.environment import environment_for_workers
from dpray.distributed.fit import in_a_thread
from dpray.distributed.pool import RayPool
from dpray.distributed.watch import FileProgress, watch
from dpray.errors import BadInput, ClusterFailed, DprayError
from dpray.execute import Result, check, execute, load_for, read_result
from dpray.progress import Progress, silent
from dpray.runs import RunFolder, new_run_id, open_folder, runs_folder
from dpray.spec import RunSpec
from dpray.world import current_world

_RETRIES = 3
# Ranks wait while the first one alone fits a generator to a release, or evaluates. A worker that
# died is noticed by Ray, whatever this says.
_PATIENCE = 24 * 3600
# On a Ray that was started for this run no node is taken away with a notice, so nobody need look
# out for one; and what ended is to be noticed soon.
_LOCAL = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5"}


@dataclass(frozen=True)
class Where:
    """How many workers, of what size, on which cluster."""

    workers: int = 1
    gpus_per_worker: float | None = None  # None: one each where the cluster has them
    address: str | None = None
    wait: bool = False  # for a cluster that is still growing

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadInput(f"--workers {self.workers} is out of range: it must be at least 1")
        if self.gpus_per_worker is not None and self.gpus_per_worker < 0:
            raise BadInput(f"--gpus-per-worker {self.gpus_per_worker:g} must not be negative")


def train(
    spec: RunSpec,
    where: Where,
    *,
    run_id: str | None = None,
    resume: bool = False,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda text: None,
    test_key: int | None = None,
) -> Result:
    """Runs `spec` on Ray Train workers and reads the finished run back."""
    # What is wrong with the settings or the data is said here, before any worker is started.
    method = check(spec)
    method.check(load_for(spec, method, say).train)
    run_id = run_id or new_run_id(spec)
    folder = open_folder(run_id) if resume else RunFolder(runs_folder() / run_id)
    if resume and folder.is_finished:
        folder.close()  # the stop may have come between the result and this
        return read_result(folder)
    cluster = connect(where.address)
    cpus, gpus = _share(cluster, where)
    _failure_file(folder).unlink(missing_ok=True)
    config = {
        "spec": spec.to_json(),
        "run_id": run_id,
        "cpus": cpus,
        "environment": environment_for_workers(),
        "test_key": test_key,
    }
    trainer = TorchTrainer(
        _work,
        train_loop_config=config,
        scaling_config=ScalingConfig(
            num_workers=where.workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": cpus, **({"GPU": gpus} if gpus else {})},
        ),
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=_PATIENCE),
        run_config=RunConfig(
            name=run_id,
            storage_path=str(_train_folder(folder).absolute()),
            failure_config=FailureConfig(max_failures=_RETRIES),
        ),
    )
    try:
        with watch(folder, progress, say), _train_settings(cluster):
            in_a_thread(trainer.fit)
    except ray.train.TrainingFailedError as error:
        _raise_own(folder)
        raise ClusterFailed(
            f"the workers of run {run_id} failed {_RETRIES + 1} times, the last time with: "
            f"{_last_line(error)}; go on with: dpray resume {run_id}"
        ) from error
    _raise_own(folder)
    shutil.rmtree(_train_folder(folder), ignore_errors=True)
    if not folder.is_finished:
        raise ClusterFailed(
            f"the workers finished, but {folder.path} is not to be seen from here: "
            "DPRAY_HOME must lie on storage that the driver and the workers share"
        )
    return read_result(folder)


def _share(cluster: Cluster, where: Where) -> tuple[float, float]:
    """Processors and GPUs of one worker: what it was given, or an even share of what there is."""
    total = cluster.resources()
    gpus = where.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if total.gpus >= where.workers else 0.0
    shares = range(int(total.cpus // where.workers), 1, -1)
    cpus = float(next((c for c in shares if total.slots(c, gpus) >= where.workers), 1))
    cluster.require(
        workers=where.workers, cpus_per_worker=cpus, gpus_per_worker=gpus, wait=where.wait
    )
    return cpus, gpus


@contextmanager
def _train_settings(cluster: Cluster) -> Iterator[None]:
    """Ray Train reads its settings from the environment; those that the user made stay."""
    ours = {k: v for k, v in _LOCAL.items() if cluster.local and k not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _work(config: dict[str, Any]) -> None:
    """One worker, from the start or after a failure: `execute`, in its process group."""
    os.environ.update(config["environment"])
    torch.set_num_threads(threads_per_worker(config["cpus"]))
    world = current_world()
    folder = RunFolder(runs_folder() / config["run_id"])
    progress: Progress = FileProgress(folder) if world.is_first else silent
    if world.from_first(lambda: _failure_file(folder).exists()):
        return  # refused on purpose: trying again would be refused again
    resume = world.from_first(lambda: (folder.path / "spec.json").exists())
    try:
        execute(
            RunSpec.from_json(config["spec"]),
            run_id=config["run_id"],
            resume=resume,
            # Every rank fans out: it lends its own processors while it waits for the results.
            pool=RayPool(progress, lent_cpus=config["cpus"]),
            progress=progress,
            say=FileProgress(folder).say if world.is_first else lambda text: None,
            test_key=config["test_key"],
        )
    except DprayError as error:
        _write_failure(folder, error)
        if world.size > 1 and not getattr(error, "everywhere", False):
            raise  # the other ranks wait for this one: only the end of the group frees them


def _train_folder(folder: RunFolder) -> Path:
    return folder.path / "ray-train"


def _failure_file(folder: RunFolder) -> Path:
    return folder.path / "refused.json"


def _write_failure(folder: RunFolder, error: DprayError) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    value = {"error": type(error).__name__, "message": str(error)}
    _failure_file(folder).write_text(json.dumps(value))


def _raise_own(folder: RunFolder) -> None:
    """Raises what a worker refused on purpose, as itself."""
    path = _failure_file(folder)
    if path.exists():
        value = json.loads(path.read_text())
        path.unlink()
        raise getattr(errors, value["error"], DprayError)(value["message"])


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
