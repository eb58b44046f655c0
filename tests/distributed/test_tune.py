"""Searches on Ray Tune: trials side by side, and none lost, repeated or charged twice."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from own_workers import own_workers

from dpray.distributed.tune import TrialSize, bundles_of, run_on_ray
from dpray.errors import BadInput
from dpray.search.budgets import DataFacts
from dpray.search.folder import SearchFolder, make_search_folder
from dpray.search.handing_out import Trials, begin
from dpray.search.journal import WORST, Journal
from dpray.search.space import choice, log_uniform
from dpray.search.trials import SearchSpec

FACTS = DataFacts(num_records=1288, num_classes=10)  # of digits@tuning
QUICK = {"features": "pixels", "batch_size": 300, "steps": 10}
LONG = {**QUICK, "steps": 500}


def make(trials=3, settings=QUICK, **words) -> SearchSpec:
    fixed = {"charge": "compose", "epsilon": 3.0, "delta": 1e-4,
             "space": {"lr": log_uniform(0.5, 5.0)}}  # fmt: skip
    return SearchSpec(method="dp-sgd", dataset="digits", trials=trials, settings=settings,
                      **{**fixed, **words})  # fmt: skip


def start(search: SearchSpec, name: str = "a-search") -> Trials:
    folder = make_search_folder(name, search)
    return Trials(folder, begin(folder, search, test_key=3), FACTS)


def wait_for_checkpoint(folder: SearchFolder) -> None:
    deadline = time.monotonic() + 200
    while not list(folder.runs.glob("*/private/checkpoints/train-*")):
        assert time.monotonic() < deadline, "no checkpoint within 200 seconds"
        time.sleep(0.05)


def test_every_declared_trial_runs_once_and_has_a_score_also_when_workers_are_killed(
    local_ray, monkeypatch
):
    """And one that cannot work is the worst, whoever scores well beside it."""
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0.2")
    trials = start(make(trials=5, settings=LONG, space={"lr": choice(2.0, 1e38)}))

    def kill():
        wait_for_checkpoint(trials.folder)
        for pid in own_workers(b"ray::ImplicitFunc", b"ray::_work"):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    run_on_ray(trials, TrialSize())
    killer.join(timeout=5)
    assert not killer.is_alive()
    journal = Journal(trials.folder.private)
    assert journal.is_complete
    by_rate = {2.0: [], 1e38: []}
    for one in journal.finished():
        by_rate[one.draw["lr"]].append(one)
    assert by_rate[2.0] and all(0.3 < one.score <= 1.0 for one in by_rate[2.0])
    assert by_rate[1e38] and {one.score for one in by_rate[1e38]} == {WORST}
    lines = (trials.folder.private / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 2 * 5  # the search, and every trial's start and end
    for one in by_rate[2.0]:
        ledger = trials.folder.trial(one.run_id).ledger.read_text()
        assert len(ledger.splitlines()) == 3  # its head, training, score: nothing is paid twice
    assert not (trials.folder.private / "ray-tune").exists()


def test_a_killed_driver_goes_on_with_the_same_trials(local_ray, monkeypatch):
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0.2")
    search = make(trials=1, settings=LONG)
    folder = make_search_folder("cut-off", search)
    script = (
        "from test_tune import *; from dpray.distributed import cluster\n"
        "from dpray.search.folder import open_search_folder\n"
        "folder = open_search_folder('cut-off')\n"
        "cluster.connect('local', num_cpus=2, object_store_memory=100 * 2**20)\n"
        "run_on_ray(Trials(folder, begin(folder, folder.read_search()), FACTS), TrialSize())"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent)
    wait_for_checkpoint(folder)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = {one.number: one.draw for one in Journal(folder.private).unfinished()}
    assert before
    run_on_ray(Trials(folder, begin(folder, search), FACTS), TrialSize())
    after = {one.number: one.draw for one in Journal(folder.private).finished()}
    assert after == before
    (ledger,) = folder.runs.glob("*/private/ledger.jsonl")
    assert len(ledger.read_text().splitlines()) == 3


def test_a_scheduler_stops_the_worse_trials_by_scores_that_were_paid_for(local_ray):
    """One at a time: ASHA stops a trial that is below half of those before it."""
    search = make(trials=4, settings={**QUICK, "steps": 40}, scheduler="asha", looks=3,
                  space={"lr": choice(2.0, 1e-6)}, seed=1)  # fmt: skip
    trials = start(search)
    run_on_ray(trials, TrialSize(concurrent=1))
    finished = Journal(trials.folder.private).finished()
    stopped = [one for one in finished if one.stopped]
    assert 0 < len(stopped) < 4
    assert Journal(trials.folder.private).best().draw["lr"] == 2.0
    for one in stopped:
        assert one.score > WORST
        run = trials.folder.trial(one.run_id)
        assert not run.key.exists()
        assert not run.is_finished


def test_a_trial_that_fans_out_has_bundles_for_its_tasks():
    assert bundles_of("dp2-vae", 3, 0) == [{"CPU": 1.0}] * 3
    assert bundles_of("dp2-vae", 2, 1) == [{"CPU": 1.0, "GPU": 1}, {"CPU": 1.0}]
    assert bundles_of("dp-merf", 3, 0) == [{"CPU": 3.0}]


@pytest.mark.parametrize("size", [{"cpus": 0}, {"gpus": -1}, {"concurrent": 0}])
def test_a_size_that_means_nothing_is_refused(size):
    with pytest.raises(BadInput):
        TrialSize(**size)
