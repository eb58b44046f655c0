"""Runs on Ray Train workers: the same weights on any number of them, and after any death."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import fans_out
import pytest
import torch
from own_workers import own_workers

from dpray import methods
from dpray.cli import main
from dpray.distributed.train import Where, train
from dpray.errors import BadInput, CannotResume, ClusterFailed
from dpray.execute import execute
from dpray.runs import RunFolder, runs_folder
from dpray.spec import RunSpec

QUICK = {"features": "pixels", "batch_size": 300, "steps": 60, "lr": 2.0}
# Long enough to be killed in the middle of, with a checkpoint every fraction of a second.
LONG = {**QUICK, "steps": 700}


def spec(settings: dict = QUICK, **words) -> RunSpec:
    return RunSpec(**{"method": "dp-sgd", "dataset": "digits", "epsilon": 3.0, **words},
                   settings=settings)  # fmt: skip


# At a larger rate rounding alone, which differs with the number of ranks, grows to 1e-4.
SPARSE = spec({**LONG, "batch_size": 4, "lr": 0.05}, epsilon=None, noise_multiplier=1.0)


def same_weights(ours, reference, tolerance: float = 1e-5) -> bool:
    pairs = zip(
        ours.release.module.state_dict().values(),
        reference.release.module.state_dict().values(),
        strict=True,
    )
    return all(torch.allclose(a, b, atol=tolerance, rtol=1e-4) for a, b in pairs)


def ledger_events(result) -> list:
    return result.card.ledger["entries"]


@pytest.fixture
def many_checkpoints(monkeypatch):
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0.2")


def checkpoints_of(folder: RunFolder) -> set[Path]:
    return set(folder.checkpoints.glob("train-*"))


def wait_for_checkpoint(folder: RunFolder, alive=lambda: True, old: Set[Path] = frozenset()):
    deadline = time.monotonic() + 200
    while not checkpoints_of(folder) - old:
        assert time.monotonic() < deadline, "no checkpoint within 200 seconds"
        assert alive()
        time.sleep(0.05)


def test_two_workers_one_of_them_killed_give_the_weights_and_the_ledger_of_one_process(
    local_ray, many_checkpoints
):
    """Of four records a step a worker often has none."""
    undisturbed = execute(SPARSE, test_key=7)
    folder = RunFolder(runs_folder() / "killed")
    killed = []

    def kill_a_worker() -> None:
        wait_for_checkpoint(folder)
        killed.append(own_workers(b"RayTrainWorker")[-1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    result = train(SPARSE, Where(workers=2), run_id="killed", test_key=7)
    killer.join()
    assert len(killed) == 1
    assert same_weights(result, undisturbed)
    assert not same_weights(execute(SPARSE, test_key=8), undisturbed)
    assert ledger_events(result) == ledger_events(undisturbed)
    assert result.card.epsilon == undisturbed.card.epsilon
    accuracy = undisturbed.metric("test_accuracy")
    assert result.metric("test_accuracy") == pytest.approx(accuracy, abs=0.01)
    print(f"kills 1, budget lost 0, charged steps {ledger_events(result)[0]['steps']}")


def test_every_rank_lends_its_processor_to_its_jobs_and_their_time_is_counted(
    local_ray, monkeypatch
):
    """The ranks hold all that there is: a pool that asked Ray for more would wait for ever."""
    monkeypatch.setitem(methods._TABLE, "fans-out", fans_out.FansOut)
    monkeypatch.setattr("dpray.distributed.train._work", fans_out.work)
    result = train(spec({}, method="fans-out", epsilon=None), Where(workers=2))
    assert result.card.sampling == f"{2 * fans_out.JOBS} jobs, 10 classes, 2 ranks"
    assert 2 * fans_out.JOBS * fans_out.SECONDS < result.metric("core_seconds") < 20


def test_more_workers_or_gpus_than_there_are_is_one_line_and_charges_nothing(local_ray):
    for where in (Where(workers=50), Where(workers=1, gpus_per_worker=1)):
        with pytest.raises(ClusterFailed, match="the cluster has 2 cpus, 0 gpus on 1 node"):
            train(spec(), where)
    assert not list(runs_folder().glob("*/private/ledger.jsonl"))


def test_what_a_worker_refuses_arrives_as_itself(local_ray, monkeypatch):
    from dpray.checkpoints import Checkpoints

    class Stop(Exception):
        pass

    def stop(self, stage, checkpoint):
        raise Stop

    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    known = spec(epsilon=None, noise_multiplier=5.0)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", stop)
        with pytest.raises(Stop):
            execute(known, run_id="stopped", test_key=7)
    with pytest.raises(CannotResume, match="the settings changed"):
        train(replace(known, noise_multiplier=2.0), Where(workers=1), run_id="stopped", resume=True)


def test_a_run_whose_driver_was_killed_and_then_interrupted_ends_at_the_same_weights(
    local_ray, many_checkpoints, capsys
):
    """The interrupt also says how to go on: Ray Train would answer it itself, without a word."""
    undisturbed = execute(spec(LONG), test_key=7)
    folder = RunFolder(runs_folder() / "orphan")
    killed = start_driver()
    wait_for_checkpoint(folder, lambda: killed.poll() is None)
    killed.kill()
    killed.wait()
    charged = folder.ledger.read_bytes()
    time.sleep(2)  # its Ray goes down with it
    old = checkpoints_of(folder)

    def interrupt() -> None:
        wait_for_checkpoint(folder, old=old)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(["resume", "orphan", "--no-tracking"]) == 130
    assert "no budget is lost, go on with: dpray resume orphan" in capsys.readouterr().err
    assert not folder.is_finished
    result = execute(spec(LONG), run_id="orphan", resume=True)  # here: no third group is needed
    assert same_weights(result, undisturbed)
    assert folder.ledger.read_bytes() == charged


def start_driver() -> subprocess.Popen[bytes]:
    """A process with a Ray of its own, and a run on it."""
    script = (
        "from test_train import *; train(spec(LONG), Where(workers=1), run_id='orphan', test_key=7)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


def test_settings_that_cannot_work_are_refused_before_ray_is_asked():
    with pytest.raises(BadInput, match="above 0"):
        train(spec({**QUICK, "lr": -1.0}), Where(address="127.0.0.1:1"))
    with pytest.raises(BadInput, match="at least 1"):
        Where(workers=0)
