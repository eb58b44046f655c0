"""`execute` as a trial of a search calls it: elsewhere, with a suite of its own, and looked at."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpray import methods
from dpray.errors import BadInput, CannotResume
from dpray.evaluation.looks import Looks, looks_at
from dpray.evaluation.suite import Suite
from dpray.execute import execute, refuse_looks
from dpray.runs import open_folder, runs_folder
from dpray.spec import RunSpec
from dpray.world import World

QUICK = {"features": "pixels", "batch_size": 400, "steps": 30, "lr": 2.0}


class Stop(Exception):
    """A scheduler that has heard enough."""


def spec(**words) -> RunSpec:
    given = {"method": "dp-sgd", "dataset": "digits", "epsilon": 3.0, "settings": QUICK, **words}
    return RunSpec(**given)


@pytest.fixture
def own_data(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    images = (rng.random((400, 12, 12)) * 60 + labels[:, None, None] * 120).astype(np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=labels, class_names=["no", "yes"])
    return str(tmp_path / "own.npz")


SCORE = Suite(
    "score", ("mlp",), 1, False, headline="mlp", epochs={"mlp": 1}, num_images=50, fidelity=False
)
MERF = {"frequencies": 20, "hidden": 8, "steps": 4, "images_per_class": 2}
# Noise that is fixed has nothing to calibrate.
LOUD = {"epsilon": None, "noise_multiplier": 5.0, "delta": 1e-3}


def test_a_run_may_live_elsewhere_and_is_taken_up_there(tmp_path):
    place = tmp_path / "trials"
    with pytest.raises(Stop):
        execute(spec(**LOUD), run_id="one", runs=place, looks=Looks((0.5, 1.0), stop_at(1)))
    with pytest.raises(CannotResume, match="no run 'one'"):
        execute(spec(**LOUD), run_id="one", resume=True)
    heard = Looks((0.5, 1.0), lambda place, score: None)
    result = execute(spec(**LOUD), run_id="one", runs=place, resume=True, looks=heard)
    assert result.folder.path == place / "one" and result.folder.is_finished
    assert not runs_folder().exists()


def test_a_suite_replaces_all_that_is_measured_of_images(own_data, monkeypatch):
    from dpray.evaluation import in_run, judge

    monkeypatch.setattr(judge, "train_judge", pytest.fail)
    drawn, honest = [], in_run.draw
    monkeypatch.setattr(in_run, "draw", lambda r, n, s: drawn.append(n) or honest(r, n, s))
    accuracy = {"test_accuracy", "mlp_accuracy", "core_seconds", "epsilon"}
    for dataset, names in (("digits", accuracy), (own_data, {*accuracy, "test_accuracy_noise"})):
        words = {"method": "dp-merf", "dataset": dataset, "settings": MERF, **LOUD}
        result = execute(spec(**words), suite=SCORE)
        assert {metric.name for metric in result.metrics} == names
        assert result.metric("test_accuracy") == result.metric("mlp_accuracy")
    assert drawn == [50, 50]
    assert result.card.ledger["entries"][1]["bound"] == 1.0  # one count, and not the root of three


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"headline": "cnn"}, "is the accuracy of cnn, which it does not train"),
        ({"classifiers": ("mlpp",)}, "did you mean 'mlp'"),
        ({"num_images": 9}, "fewer than the 10 classes"),
        ({"runs": 0}, "at least 1"),
    ],
)
def test_a_suite_without_a_score_stops_before_anything_starts(changed, message):
    with pytest.raises(BadInput, match=message):
        execute(spec(**LOUD), suite=replace(SCORE, **changed))
    assert not runs_folder().exists()


def stop_at(last, heard=None):
    """A scheduler that stops a trial at one of its looks."""

    def report(place, score):
        if heard is not None:
            heard.append((place, score))
        if place == last:
            raise Stop

    return report


def test_a_trial_that_was_stopped_goes_on_without_another_look_or_charge(own_data):
    given = spec(dataset=own_data, settings={**QUICK, "steps": 8}, **LOUD)
    whole, before, after = execute(given, test_key=1), [], []
    with pytest.raises(Stop):
        execute(given, run_id="trial", test_key=1, looks=Looks(looks_at(4), stop_at(2, before)))
    folder = open_folder("trial")
    charged = folder.ledger.read_text()
    assert len(charged.splitlines()) == 4 and not folder.is_finished  # training and two looks
    looks = Looks(looks_at(4), lambda *told: after.append(told))
    result = execute(given, run_id="trial", resume=True, looks=looks)
    assert after[:2] == before and [place for place, _ in after] == [1, 2, 3, 4]
    assert after[3][1] == result.metric("test_accuracy")
    assert folder.ledger.read_text().startswith(charged)
    names = [entry["name"] for entry in result.card.ledger["entries"]]
    assert names == ["dp-sgd", *(f"hold-out accuracy, look {n} of 4" for n in (1, 2, 3, 4))]
    for name, value in whole.release.module.state_dict().items():
        assert torch.equal(value, result.release.module.state_dict()[name])


def test_the_last_look_is_told_when_the_run_is_finished_and_told_again(own_data):
    given, heard = spec(dataset=own_data, settings={**QUICK, "steps": 2}, **LOUD), []
    with pytest.raises(Stop):
        execute(given, run_id="trial", looks=Looks((0.5, 1.0), stop_at(2, heard)))
    assert open_folder("trial").is_finished and not open_folder("trial").key.exists()
    again = Looks((0.5, 1.0), lambda *told: heard.append(told))
    execute(given, run_id="trial", resume=True, looks=again)
    assert heard[1:] == [heard[1]] * 2


def test_looks_and_suite_stay_what_they_were_when_a_run_goes_on():
    with pytest.raises(Stop):
        execute(spec(**LOUD), run_id="trial", suite=SCORE, looks=Looks((0.5, 1.0), stop_at(1)))
    for suite, shares in ((SCORE, (0.1, 0.5, 1.0)), (SCORE, None), (None, (0.5, 1.0))):
        looks = shares and Looks(shares, stop_at(0))
        with pytest.raises(CannotResume, match="the settings changed"):
            execute(spec(**LOUD), run_id="trial", resume=True, suite=suite, looks=looks)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("dp-moments", {}, "dp-moments has nothing to score before its end; choose from: augm, "),
        ("continual", {}, "continual has nothing"),
        ("dp-vae", {"class_model": "noisy-statistics"}, "dp-vae with these settings has nothing"),
        ("dpmi", {"classes": "per-class"}, "dpmi with these settings has nothing"),
    ],
)
def test_a_method_that_cannot_be_looked_at_is_refused(method, settings, message):
    with pytest.raises(BadInput, match=message):
        refuse_looks(methods.find(method)(**settings))


def test_looks_are_refused_before_anything_starts_and_for_several_workers():
    words = {"method": "dp-moments", "settings": {}, **LOUD}
    with pytest.raises(BadInput, match="nothing to score before its end"):
        execute(spec(**words), looks=Looks((0.5, 1.0), pytest.fail))
    assert not runs_folder().exists()
    with pytest.raises(BadInput, match="a run of 2 workers cannot be scored on its way"):
        refuse_looks(methods.find("dp-sgd")(), World(0, 2))
