"""The contract every method signs: a new method is tested by being in the folder."""

import dataclasses

import pytest
import torch

from dpray import methods
from dpray.checkpoints import Checkpoint
from dpray.contract import Classifier, load_release
from dpray.data.records import Images
from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.card import Card, make_card, verify
from dpray.privacy.ledger import Ledger
from dpray.privacy.queries import PaidQuery

pytestmark = pytest.mark.usefixtures("own_cache")

# Settings that make a method quick on sixty tiny images.
TINY = {
    "augm": {"latent": 2, "hidden": 8, "images_per_class": 20, "batch_size": 20, "epochs": 2.0},
    "continual": {
        "learner": "dp-sgd",
        "classes_per_task": 1,
        "learner_settings": "features=pixels batch_size=10 steps=4",
    },
    "dp-cgan": {"latent": 2, "hidden": 4, "batch_size": 20, "steps": 4, "num_fakes": 6},
    "dp-gan": {
        "latent": 2,
        "hidden": 4,
        "batch_size": 20,
        "steps": 4,
        "num_fakes": 6,
        "critic_steps": 2,
    },
    "dp-kvae": {
        "clusters": 2,
        "iterations": 2,
        "frequencies": 20,
        "latent": 2,
        "hidden": 8,
        "batch_size": 20,
        "epochs": 2.0,
    },
    "datalens": {
        "teachers": 6,
        "teacher_steps": 2,
        "rounds": 3,
        "questions": 3,
        "num_fakes": 6,
        "hidden": 4,
        "signs": 5,
        "fits": 2,
    },
    "dp-match": {"spc": 2, "networks": 2, "width": 2, "steps": 3, "dimensions": 4, "warp": 1.0},
    "dp-merf": {"frequencies": 20, "hidden": 8, "steps": 3, "images_per_class": 2},
    "dp-moments": {"dimensions": 4, "components": 2, "warp": 0.5},
    "dp-sgd": {"model": "linear", "features": "pixels", "batch_size": 20, "steps": 8},
    "dp-sinkhorn": {"latent": 2, "hidden": 8, "batch_size": 20, "num_fakes": 6, "steps": 4},
    "dp-vae": {"latent": 2, "hidden": 8, "batch_size": 20, "epochs": 2, "micro_batch": 64},
    "dp2-vae": {
        "encoders": 6,
        "latent": 2,
        "hidden": 4,
        "pretrain_steps": 2,
        "subsets_per_step": 3,
        "steps": 4,
    },
    "dpmi": {
        "public_steps": 3,
        "public_latent": 6,
        "ascent_steps": 2,
        "noise": 2,
        "hidden": 4,
        "batch_size": 20,
        "epochs": 2.0,
    },
    "g-pate": {
        "teachers": 6,
        "teacher_steps": 2,
        "rounds": 3,
        "questions": 3,
        "num_fakes": 6,
        "hidden": 4,
        "projections": 2,
        "fits": 2,
    },
    "pate-gan": {
        "teachers": 6,
        "teacher_steps": 2,
        "rounds": 3,
        "questions": 6,
        "num_fakes": 6,
        "hidden": 4,
        "student_steps": 2,
        "generator_steps": 1,
    },
    "gs-wgan": {
        "critics": 6,
        "latent": 2,
        "hidden": 4,
        "critic_hidden": 3,
        "num_fakes": 6,
        "num_images": 6,
        "warm_steps": 2,
        "subsets_per_step": 3,
        "steps": 4,
    },
    "psg": {"spc": 2, "width": 4, "iterations": 2, "outer": 2, "inner": 1, "batch_size": 20},
    "sgd": {"model": "linear", "epochs": 2, "batch_size": 20},
    "vaegm": {"latent": 2, "hidden": 8, "batch_size": 10, "epochs": 2.0},
}
PRIVATE = [name for name, kind in methods.table().items() if kind.private]


def test_every_method_has_tiny_settings():
    assert set(TINY) == set(methods.table())


@pytest.mark.parametrize("name", methods.table())
def test_the_name_is_the_files_name_and_a_frozen_dataclass(name):
    kind = methods.find(name)
    assert kind.__module__ == f"dpray.methods.{name.replace('-', '_')}"
    assert dataclasses.is_dataclass(kind)
    assert kind.summary
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().lr = 5.0


@pytest.mark.parametrize("name", PRIVATE)
def test_it_spends_no_more_than_its_budget_and_nearly_all_of_it(name, tiny_data, make_run):
    run = make_run(epsilon=1.0)
    methods.find(name)(**TINY[name]).fit(tiny_data, run)
    assert 0.99 < run.ledger.epsilon <= 1.0


@pytest.mark.parametrize("name", methods.table())
def test_its_release_comes_back_from_disk_as_it_was(name, tiny_data, make_run, tmp_path):
    private = methods.find(name).private
    run = make_run(epsilon=1.0) if private else make_run(noise_multiplier=1.0)
    release = methods.find(name)(**TINY[name]).fit(tiny_data, run)
    release.save(tmp_path / "release")
    assert {p.name for p in (tmp_path / "release").iterdir()} == {
        "release.json",
        "weights.safetensors",
    }
    again = load_release(tmp_path / "release")
    assert type(again) is type(release)
    assert torch.equal(outputs(again, tiny_data), outputs(release, tiny_data))


def outputs(release, data):
    """What a release says of the images, or the images it draws."""
    if isinstance(release, Classifier):
        return release.probabilities(data.private.pixels)
    drawn = release.sample(data.private.labels, torch.Generator().manual_seed(1))
    assert drawn.shape == data.private.pixels.shape
    assert 0 <= drawn.min() <= drawn.max() <= 1
    assert drawn.dtype == torch.float32
    return drawn


@pytest.mark.parametrize("name", PRIVATE)
def test_a_replay_with_the_same_key_is_the_same_release(name, tiny_data, make_run):
    first, again = (
        methods.find(name)(**TINY[name]).fit(tiny_data, make_run(key=3)) for _ in range(2)
    )
    other = methods.find(name)(**TINY[name]).fit(tiny_data, make_run(key=4))
    assert torch.equal(outputs(first, tiny_data), outputs(again, tiny_data))
    assert not torch.equal(outputs(first, tiny_data), outputs(other, tiny_data))


@pytest.mark.parametrize("name", PRIVATE)
def test_it_asks_as_often_as_it_paid_for(name, tiny_data, make_run, monkeypatch):
    asked = []
    honest = PaidQuery.check

    def count(self, step):
        asked.append((self.query.name, step))
        honest(self, step)

    monkeypatch.setattr(PaidQuery, "check", count)
    run = make_run(epsilon=1.0)
    methods.find(name)(**TINY[name]).fit(tiny_data, run)
    paid = [(entry.name, step) for entry in run.ledger.entries for step in range(entry.steps)]
    assert sorted(asked) == sorted(paid)


@pytest.mark.parametrize("name", PRIVATE)
def test_its_card_can_be_computed_again_from_the_file(name, tiny_data, make_run, tmp_path):
    run = make_run(epsilon=1.0)
    run.ledger = Ledger.create(
        tmp_path / "ledger", run.ledger.budget, subject={}, adjacency=run.ledger.adjacency
    )
    methods.find(name)(**TINY[name]).fit(tiny_data, run)
    card = make_card(
        run_id="r",
        method=name,
        dataset="tiny",
        ledger=run.ledger,
        facts=run.facts,
        public={},
        num_records=60,
    )
    checked = verify(Card.read(card.write(tmp_path)))
    assert 0.99 < checked.recomputed <= 1.0
    assert checked.ledger_head == run.ledger.head


@pytest.mark.parametrize("name", PRIVATE)
def test_it_reads_nothing_when_the_budget_is_refused(name, tiny_data, make_run):
    run = make_run(epsilon=1.0)
    run.noise_multiplier = 0.05  # far over the budget

    class OnlyAShape:
        """Reading anything but the shape, which is public, is an error."""

        shape = tiny_data.private.pixels.shape

    private = Images(OnlyAShape(), OnlyAShape(), OnlyAShape())
    hidden = dataclasses.replace(tiny_data, private=private)
    with pytest.raises(BudgetExceeded, match="would bring epsilon"):
        methods.find(name)(**TINY[name]).fit(hidden, run)
    assert run.ledger.entries == []


def test_dp_sgd_goes_on_from_a_checkpoint_to_the_same_weights(tiny_data, make_run, monkeypatch):
    whole = methods.find("dp-sgd")(**TINY["dp-sgd"]).fit(tiny_data, make_run(key=5))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped")
    saves: list[Checkpoint] = []
    honest = run.checkpoints.save

    def stop_after_four(stage, checkpoint):
        honest(stage, checkpoint)
        saves.append(checkpoint)
        if checkpoint.step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.checkpoints, "save", stop_after_four)
    with pytest.raises(KeyboardInterrupt):
        methods.find("dp-sgd")(**TINY["dp-sgd"]).fit(tiny_data, run)
    resumed = make_run(key=5, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = methods.find("dp-sgd")(**TINY["dp-sgd"]).fit(tiny_data, resumed)
    assert len(resumed.ledger.entries) == 1
    for key, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[key])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 5, "epochs": 1.0}, "not both"),
        ({"batch_size": 0}, "at least 1"),
        ({"clip_norm": 0.0}, "above 0"),
        ({"averaging": 1.0}, "below 1"),
        ({"epochs": 0.0}, "train nothing"),
    ],
)
def test_dp_sgd_refuses_settings_that_make_no_sense(settings, words):
    with pytest.raises(BadInput, match=words):
        methods.find("dp-sgd")(**settings).plan(1000)


@pytest.mark.parametrize(
    "name",
    [
        "dp-cgan",
        "dp-gan",
        "dp-kvae",
        "dp-match",
        "dp-merf",
        "dp-moments",
        "dp-vae",
        "dp2-vae",
        "dpmi",
        "datalens",
        "g-pate",
        "pate-gan",
        "vaegm",
    ],
)
def test_a_synthesizer_of_one_class_is_refused_before_anything_is_paid(name, tiny_data):
    alone = dataclasses.replace(tiny_data, class_names=("a",))
    with pytest.raises(BadInput, match="one class"):
        methods.find(name)().check(alone)
