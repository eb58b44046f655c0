"""Runs on Ray Train workers: the same weights on any number of them, and after any death."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fans_out
import pytest
import torch
from own_workers import own_workers

from dpray import methods
from dpray.distributed import cluster
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
def three_cpus(no_ray):
    """Three logical processors: placement counts them, the machine need not have them."""
    return cluster.connect("local", num_cpus=3, object_store_memory=100 * 2**20)


@pytest.fixture
def many_checkpoints(monkeypatch):
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0.2")


def wait_for_checkpoint(folder: RunFolder, alive=lambda: True) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.checkpoints.glob("train-*")):
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        assert alive()
        time.sleep(0.05)


def test_three_workers_give_the_weights_and_the_ledger_of_one_process(three_cpus):
    """Of three workers one has no record at all, and of four records a step most have none."""
    sparse = {**QUICK, "batch_size": 4}
    here = execute(spec(sparse), test_key=7)
    result = train(spec(sparse), Where(workers=3), test_key=7)
    assert same_weights(result, here)
    assert ledger_events(result) == ledger_events(here)
    assert result.metric("test_accuracy") == pytest.approx(here.metric("test_accuracy"), abs=0.01)
    assert not same_weights(execute(spec(sparse), test_key=8), here)


def test_a_worker_killed_in_mid_step_costs_no_budget_and_changes_no_weight(
    local_ray, many_checkpoints
):
    undisturbed = execute(spec(LONG), test_key=7)
    folder = RunFolder(runs_folder() / "killed")
    killed = []

    def kill_a_worker() -> None:
        wait_for_checkpoint(folder)
        killed.append(own_workers(b"RayTrainWorker")[-1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    result = train(spec(LONG), Where(workers=2), run_id="killed", test_key=7)
    killer.join()
    assert len(killed) == 1
    assert same_weights(result, undisturbed)
    assert ledger_events(result) == ledger_events(undisturbed)
    assert result.card.epsilon <= 3.0
    print(f"kills 1, budget lost 0, charged steps {ledger_events(result)[0]['steps']}")


def test_a_killed_driver_is_resumed_to_the_same_weights(no_ray, many_checkpoints):
    undisturbed = execute(spec(LONG), test_key=7)
    folder = RunFolder(runs_folder() / "orphan")
    script = (
        "from test_train import *; train(spec(LONG), Where(workers=1), run_id='orphan', test_key=7)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        start_new_session=True,
    )
    wait_for_checkpoint(folder, lambda: driver.poll() is None)
    driver.kill()
    driver.wait()
    charged = folder.ledger.read_bytes()
    time.sleep(2)  # its Ray goes down with it
    result = train(spec(LONG), Where(workers=1), run_id="orphan", resume=True)
    assert same_weights(result, undisturbed)
    assert folder.ledger.read_bytes() == charged


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
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", stop)
        with pytest.raises(Stop):
            execute(spec(), run_id="stopped", test_key=7)
    with pytest.raises(CannotResume, match="the settings changed"):
        train(spec(epsilon=8.0), Where(workers=1), run_id="stopped", resume=True)


def test_settings_that_cannot_work_are_refused_before_ray_is_asked():
    with pytest.raises(BadInput, match="above 0"):
        train(spec({**QUICK, "lr": -1.0}), Where(address="127.0.0.1:1"))
    with pytest.raises(BadInput, match="at least 1"):
        Where(workers=0)


def test_an_interrupt_says_how_to_go_on(tmp_path):
    """In a process of its own: Ray Train would answer Ctrl-C itself, late and without a word."""
    command = ["run", "dp-sgd", "--dataset", "digits", "--noise-multiplier", "5", "--no-tracking"]
    settings = ["--set", "model=linear", "features=pixels", "batch_size=100", "steps=100000"]
    env = os.environ | {"DPRAY_HOME": str(tmp_path), "DPRAY_CHECKPOINT_SECONDS": "0.2"}
    program = [sys.executable, "-m", "dpray", *command, *settings]
    run = subprocess.Popen(program, env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/private/checkpoints/*")):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "no budget is lost, go on with: dpray resume" in said
