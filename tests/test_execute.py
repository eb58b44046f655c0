"""`execute`: the main path, on embedded data and on the user's own."""

import json
import os
import shutil
import stat
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dpray import methods
from dpray.errors import BadInput, CannotResume, LedgerDamaged
from dpray.evaluation.metrics import Source
from dpray.execute import check, execute, read_result, share_of
from dpray.methods.sgd import Sgd
from dpray.pool import SerialPool
from dpray.privacy.card import Card, verify
from dpray.runs import open_folder
from dpray.spec import RunSpec
from dpray.world import World

QUICK = {"features": "pixels", "batch_size": 400, "steps": 30, "lr": 2.0}


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


def test_a_run_leaves_a_card_that_verifies_and_a_release_that_predicts():
    result = execute(spec())
    assert result.metric("test_accuracy") > 0.6
    card = Card.read(result.folder.path / "card.json")
    assert verify(card).recomputed == pytest.approx(result.metric("epsilon"))
    assert card.fit_for_release
    assert 2.9 < card.epsilon <= 3.0
    again = read_result(result.folder)
    pixels = torch.rand(5, 1, 28, 28)
    assert torch.equal(again.release.predict(pixels), result.release.predict(pixels))


def test_the_key_is_gone_when_the_run_ends_and_stands_in_no_file(monkeypatch):
    from dpray.privacy.noise import RunKey

    made = []
    honest = RunKey.fresh.__func__
    monkeypatch.setattr(RunKey, "fresh", classmethod(lambda c: made.append(honest(c)) or made[-1]))
    folder = execute(spec()).folder
    assert not folder.key.exists()
    assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700
    secret = made[0]._secret
    files = [p for p in folder.path.rglob("*") if p.is_file()]
    assert len(files) >= 6
    for path in files:
        assert secret not in path.read_bytes()
        assert secret.hex().encode() not in path.read_bytes()


def test_the_users_hold_out_is_scored_by_a_paid_noisy_count(own_data):
    result = execute(
        spec(dataset=own_data, epsilon=1.0, delta=1e-3, settings={**QUICK, "steps": 5})
    )
    accuracy = next(m for m in result.metrics if m.name == "test_accuracy")
    assert accuracy.source is Source.NOISY_HOLD_OUT
    entries = result.card.ledger["entries"]
    assert [e["part"] for e in entries] == ["training records", "hold-out records"]
    assert result.card.epsilon <= 1.0
    assert "own.npz" not in result.run_id


def test_the_noisy_count_is_the_count_plus_the_keyed_noise_that_was_paid_for(own_data):
    from dpray.data.datasets import load
    from dpray.privacy.noise import RunKey

    few = {**QUICK, "steps": 5}
    result = execute(spec(dataset=own_data, epsilon=1.0, delta=1e-3, settings=few), test_key=1)
    test = load(own_data).test
    correct = float((result.release.predict(test.pixels) == test.labels).sum())
    noise = result.card.ledger["entries"][1]["event"]["noise_multiplier"]
    noisy = correct + noise * RunKey.insecure(1).normals("hold-out accuracy/noise", 0, 1).item()
    assert abs(noisy - correct) > 0.01
    expected = min(max(noisy / len(test), 0.0), 1.0)
    assert result.metric("test_accuracy") == pytest.approx(expected)


def test_a_non_private_run_says_so():
    result = execute(spec(method="sgd", epsilon=None, settings={"model": "linear", "epochs": 2}))
    assert result.card.epsilon is None
    assert not result.card.fit_for_release
    assert "NO PRIVACY" in result.card.text()


def test_fixed_noise_is_run_and_its_true_cost_stated():
    result = execute(spec(epsilon=None, noise_multiplier=0.3))
    assert result.card.epsilon > 20
    assert not result.card.fit_for_release
    assert "protects nobody" in result.card.text()


def test_a_test_key_is_not_fit_for_release():
    assert "test key" in execute(spec(), test_key=1).card.text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"method": "dp-sdg"}, "did you mean 'dp-sgd'"),
        ({"settings": {"clipnorm": 1}}, "did you mean 'clip_norm'"),
        ({"settings": {"batch_size": "many"}}, "expected int"),
        ({"settings": {"model": "resnet"}}, "choose from"),
        ({"epsilon": None}, "needs a budget"),
        ({"method": "sgd", "settings": {}}, "adds no noise"),
    ],
)
def test_a_wrong_specification_stops_before_anything_starts(words, message):
    with pytest.raises(BadInput, match=message):
        check(spec(**words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"epsilon": 0.0}, "out of range"),
        ({"epsilon": float("nan")}, "out of range"),
        ({"epsilon": 21.0}, "protects nobody"),
        ({"delta": 0.0}, "between 0 and 1"),
        ({"noise_multiplier": 1.0}, "not both"),
    ],
)
def test_a_number_out_of_range_is_refused(words, message):
    with pytest.raises(BadInput, match=message):
        spec(**words)


def test_a_specification_goes_to_json_and_back():
    original = spec(seed=4, insist=True, epsilon=30.0)
    assert RunSpec.from_json(json.loads(json.dumps(original.to_json()))) == original
    with pytest.raises(BadInput, match="no field"):
        RunSpec.from_json({"metod": "x"})


def test_a_delta_above_one_over_n_is_warned_of():
    said = []
    execute(spec(delta=1e-2), say=said.append)
    assert any("above 1/N" in line for line in said)


class Stop(Exception):
    pass


def interrupted_run(monkeypatch, **words):
    """A run that dies after its third checkpoint, as a kill would end it."""
    from dpray.checkpoints import Checkpoints

    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    honest = Checkpoints.save

    def save(self, stage, checkpoint):
        honest(self, stage, checkpoint)
        if checkpoint.step == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        with pytest.raises(Stop):
            execute(spec(**words), run_id="stopped", test_key=1)
    return open_folder("stopped")


def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(monkeypatch):
    whole = execute(spec(), test_key=1)
    folder = interrupted_run(monkeypatch)
    charged = folder.ledger.read_text()
    result = execute(folder.read_spec(), run_id="stopped", resume=True)
    assert folder.ledger.read_text() == charged
    for name, value in whole.release.module.state_dict().items():
        assert torch.equal(value, result.release.module.state_dict()[name])


def test_a_truncated_checkpoint_falls_back_to_the_one_before_it(monkeypatch):
    whole = execute(spec(), test_key=1)
    folder = interrupted_run(monkeypatch)
    newest = sorted(folder.checkpoints.iterdir())[-1]
    os.truncate(newest, newest.stat().st_size // 2)
    said = []
    result = execute(folder.read_spec(), run_id="stopped", resume=True, say=said.append)
    assert [line for line in said if "damaged" in line and newest.name in line]
    for name, value in whole.release.module.state_dict().items():
        assert torch.equal(value, result.release.module.state_dict()[name])


def test_changed_data_on_resume_are_refused(monkeypatch, own_data):
    folder = interrupted_run(monkeypatch, dataset=own_data, delta=1e-3)
    with np.load(own_data) as arrays:
        changed = {name: arrays[name].copy() for name in arrays.files}
    changed["images"][0] ^= 1
    np.savez(own_data, **changed)
    with pytest.raises(CannotResume, match="the dataset changed"):
        execute(folder.read_spec(), run_id="stopped", resume=True)


def test_changed_settings_on_resume_are_refused(monkeypatch):
    interrupted_run(monkeypatch)
    with pytest.raises(CannotResume, match="the settings changed"):
        execute(spec(epsilon=8.0), run_id="stopped", resume=True)


def test_a_damaged_or_foreign_ledger_is_refused(monkeypatch):
    folder = interrupted_run(monkeypatch)
    original = folder.ledger.read_bytes()
    folder.ledger.write_bytes(original.replace(b"repeated", b"repaeted"))
    with pytest.raises(LedgerDamaged):
        execute(folder.read_spec(), run_id="stopped", resume=True)
    other = execute(spec(seed=9))
    shutil.copy(other.folder.ledger, folder.ledger)
    with pytest.raises((CannotResume, LedgerDamaged)):
        execute(folder.read_spec(), run_id="stopped", resume=True)


def test_a_finished_run_is_not_run_again():
    first = execute(spec(), run_id="done")
    again = execute(first.spec, run_id="done", resume=True)
    assert again.metric("core_seconds") == first.metric("core_seconds")


def test_an_unknown_run_names_the_latest():
    execute(spec(), run_id="known")
    with pytest.raises(CannotResume, match="known"):
        open_folder("unknown")


def test_a_run_that_is_still_going_cannot_be_taken_up_by_another(monkeypatch):
    from dpray import runs

    folder = interrupted_run(monkeypatch)
    monkeypatch.setattr(runs, "_SECONDS_TO_WAIT", 0.3)
    said = []
    with (
        folder.held(said.append),
        pytest.raises(CannotResume, match="still going in another process"),
    ):
        execute(folder.read_spec(), run_id="stopped", resume=True, say=said.append)
    assert len(said) == 1
    execute(folder.read_spec(), run_id="stopped", resume=True)


def stop_in(monkeypatch, owner, name, **words):
    """A run that dies at the start of `owner.name`, as a kill would end it."""

    def stop(*_, **__):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stop)
        with pytest.raises(Stop):
            execute(spec(**words), run_id="stopped", test_key=1)
    return open_folder("stopped")


def test_a_stop_between_result_and_clean_up_still_destroys_the_key(monkeypatch):
    from dpray.runs import RunFolder

    folder = stop_in(monkeypatch, RunFolder, "close")
    assert folder.is_finished
    assert folder.key.exists()
    execute(folder.read_spec(), run_id="stopped", resume=True)
    assert not folder.key.exists()
    assert not folder.checkpoints.exists()


def test_a_stop_after_training_replays_no_step(monkeypatch):
    """What left the private side once must not be made again by other arithmetic."""
    from dpray.methods import dp_sgd
    from dpray.privacy.card import Card

    folder = stop_in(monkeypatch, Card, "write")
    weights = (folder.release / "weights.safetensors").read_bytes()

    def never(*_, **__):
        raise AssertionError("a step was replayed")

    monkeypatch.setattr(dp_sgd, "noisy_gradient", never)
    result = execute(folder.read_spec(), run_id="stopped", resume=True)
    assert (result.folder.release / "weights.safetensors").read_bytes() == weights


def test_a_stop_after_the_hold_out_was_charged_can_be_resumed(monkeypatch, own_data):
    from dpray.privacy.card import Card

    folder = stop_in(monkeypatch, Card, "write", dataset=own_data, delta=1e-3)
    charged = folder.ledger.read_text()
    execute(folder.read_spec(), run_id="stopped", resume=True)
    assert folder.ledger.read_text() == charged


def test_a_ledger_that_is_gone_is_not_replaced_by_a_new_one(monkeypatch):
    folder = interrupted_run(monkeypatch)
    folder.ledger.unlink()
    with pytest.raises(LedgerDamaged, match="is gone"):
        execute(folder.read_spec(), run_id="stopped", resume=True)


def test_a_stop_while_the_ledger_is_made_starts_over(monkeypatch):
    from dpray.privacy import ledger

    folder = stop_in(monkeypatch, ledger, "write_whole")
    assert folder.ledger.exists()
    assert execute(folder.read_spec(), run_id="stopped", resume=True).card.epsilon <= 3.0


def test_a_run_id_is_used_once():
    execute(spec(), run_id="once")
    with pytest.raises(BadInput, match="already"):
        execute(spec(seed=3), run_id="once")
    assert open_folder("once").read_spec().seed == 0


@dataclass(frozen=True, kw_only=True)
class ByClass(Sgd):
    """Shares records out itself: a worker gets those of its own classes."""

    def share(self, data, rank, size):
        return replace(data, private=data.private[data.private.labels % size == rank])


def test_a_method_may_say_which_records_a_rank_gets(tiny_data):
    shares = [share_of(ByClass(), tiny_data, World(rank, 2)) for rank in range(2)]
    assert [set(share.private.labels.tolist()) for share in shares] == [{0, 2}, {1}]
    assert all(share.num_records == 60 for share in shares)
    in_rows = share_of(Sgd(), tiny_data, World(0, 2))
    assert set(in_rows.private.labels.tolist()) == {0, 1, 2}


def test_a_run_asks_the_method_for_its_share(monkeypatch):
    asked = []

    class Asked(ByClass):
        def share(self, data, rank, size):
            asked.append((data.name, rank, size))
            return super().share(data, rank, size)

    monkeypatch.setitem(methods._TABLE, "asked", Asked)
    execute(spec(method="asked", epsilon=None, settings={"model": "linear", "epochs": 1}))
    assert asked == [("digits", 0, 1)]


def test_processor_time_of_jobs_elsewhere_is_in_the_core_seconds(monkeypatch):
    class Elsewhere(SerialPool):
        """A pool whose jobs took a thousand seconds before this run and a hundred in it."""

        def __init__(self):
            super().__init__()
            self.cpu_seconds = 1000.0

        def map(self, *words, **named):
            self.cpu_seconds += 100.0
            return super().map(*words, **named)

    class FansOut(Sgd):
        def fit(self, data, run):
            list(run.pool.map(lambda job, shared: job, [1]))
            return super().fit(data, run)

    monkeypatch.setitem(methods._TABLE, "fans-out", FansOut)
    words = {"method": "fans-out", "epsilon": None, "settings": {"model": "linear", "epochs": 1}}
    assert 100 < execute(spec(**words), pool=Elsewhere()).metric("core_seconds") < 200
