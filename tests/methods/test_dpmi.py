"""DPMI: what is paid and when, what a unit depends on, and that a stopped run goes on the same."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from dpray.checkpoints import Checkpoints
from dpray.data.folders import data_cache
from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.inversion.learners import VaeLearner
from dpray.methods.dpmi import Combo, Dpmi
from dpray.privacy.accounting import Adjacency, cost_of
from dpray.privacy.card import make_card
from dpray.privacy.ledger import Ledger
from dpray.privacy.parts import CONDITION, of_classes
from dpray.privacy.queries import PoissonGradients

pytestmark = pytest.mark.usefixtures("own_cache")

TINY = {
    "public_steps": 3,
    "public_latent": 6,
    "ascent_steps": 2,
    "noise": 2,
    "hidden": 4,
    "critic_hidden": 4,
    "generator_hidden": 4,
    "num_fakes": 8,
    "batch_size": 20,
    "epochs": 2.0,
}


def dpmi(**settings) -> Dpmi:
    return Dpmi(**{**TINY, **settings})


@pytest.mark.parametrize("combo", get_args(Combo))
def test_each_combination_runs_and_draws_images(combo, tiny_data, make_run):
    method = dpmi(combo=combo, snapshots=2)
    method.check(tiny_data)
    run = make_run(noise_multiplier=2.0)
    release = method.fit(tiny_data, run)
    images = release.sample(torch.tensor([2, 0, 1, 2]), torch.Generator().manual_seed(0))
    assert images.shape == (4, 1, 16, 16)
    assert 0 <= images.min() <= images.max() <= 1
    module = release.module
    assert module.histories[0].steps.tolist() == [3, 6]
    for name, value in module.learners[0].state_dict().items():
        assert torch.equal(module.histories[0].decoders[1].state_dict()[name], value)


@pytest.mark.parametrize("classes", ["single", "per-class"])
@pytest.mark.parametrize("combo", ["ae-enc-gan", "ae-enc-vae"])
def test_learners_without_labels_draw_images_too(combo, classes, tiny_data, make_run):
    method = dpmi(combo=combo, classes=classes, gan_loss="wgan")
    release = method.fit(tiny_data, make_run(noise_multiplier=2.0))
    assert len(release.module.learners) == (3 if classes == "per-class" else 1)
    assert (release.module.labeller is not None) == (classes == "single")
    images = release.sample(torch.tensor([2, 0, 2]), torch.Generator().manual_seed(0))
    assert images.shape == (3, 1, 16, 16)


class OncePaid:
    """A tensor that may be read when there is something on the ledger; its shape is public."""

    def __init__(self, value, ledger):
        self.value, self.ledger, self.shape = value, ledger, value.shape
        self.reads = 0

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        assert self.ledger.entries, "a record was read before it was paid for"
        self.reads += 1
        return self.value[rows]

    def __eq__(self, other):
        return self[:] == other

    __hash__ = None


@pytest.mark.parametrize(
    "settings",
    [{}, {"combo": "wgan-gan"}, {"classes": "per-class"}, {"classes": "single"}],
    ids=str,
)
def test_no_record_is_read_before_it_is_paid_for(settings, tiny_data, make_run):
    run = make_run(noise_multiplier=2.0)
    private = tiny_data.private
    pixels, labels = OncePaid(private.pixels, run.ledger), OncePaid(private.labels, run.ledger)
    with pytest.raises(AssertionError, match="before it was paid"):
        pixels[:1]
    hidden = replace(tiny_data, private=Images(pixels, labels, private.ids))
    method = dpmi(**settings)
    method.check(hidden)
    method.fit(hidden, run)
    assert pixels.reads and labels.reads


def test_each_class_is_charged_for_its_own_records_and_epsilon_is_that_of_one(
    tiny_data, make_run, tmp_path
):
    run = make_run(epsilon=1.0)
    run.ledger = Ledger.create(
        tmp_path / "ledger", run.ledger.budget, subject={}, adjacency=Adjacency.ADD_REMOVE
    )
    dpmi(classes="per-class").fit(tiny_data, run)
    entries = run.ledger.entries
    assert [entry.part for entry in entries] == [of_classes([label]) for label in range(3)]
    assert len({entry.name for entry in entries}) == 3
    together, alone = (
        cost_of([e.event for e in some], 1e-5, Adjacency.ADD_REMOVE).epsilon
        for some in (entries, entries[:1])
    )
    assert run.ledger.epsilon == pytest.approx(alone)
    assert 0.99 < alone <= 1.0
    assert together > 1.5 * alone
    words = {"run_id": "r", "method": "dpmi", "dataset": "tiny", "public": {}}
    card = make_card(ledger=run.ledger, facts=run.facts, num_records=60, **words)
    assert CONDITION in card.text()
    assert "within each of 3 classes" in card.text()


def test_learners_of_classes_are_refused_where_a_record_may_change_its_class(tiny_data, make_run):
    run = make_run(noise_multiplier=20.0)
    run.ledger.adjacency = Adjacency.REPLACE
    with pytest.raises(BadInput, match="add-or-remove-one neighbours"):
        dpmi(classes="per-class").fit(tiny_data, run)
    assert run.ledger.entries == []
    assert not (data_cache() / "public-models").exists()  # said before minutes of training
    dpmi(classes="conditional", batch_size=60).fit(tiny_data, run)
    assert len(run.ledger.entries) == 1


def test_missing_public_data_are_one_line(tiny_data):
    without = replace(tiny_data, public=None)
    unlabelled = replace(tiny_data, public=replace(tiny_data.public, labelling=None))
    for data, words in ((without, "dpmi needs public data"), (unlabelled, "classes=single needs")):
        with pytest.raises(BadInput, match=words) as refused:
            dpmi(classes="single").check(data)
        assert "\n" not in str(refused.value)
    dpmi(classes="conditional").check(unlabelled)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise": 0}, "noise 0 must be at least 1"),
        ({"steps": 0}, "steps 0 must be at least 1"),
        ({"snapshots": -1}, "at least 0"),
        ({"public_steps": -1}, "steps -1 of a public model"),
        ({"clip_norm": float("inf")}, "clip_norm inf must be above 0"),
        ({"averaging": 1.0}, "below 1"),
        ({"kl_weight": float("nan")}, "kl_weight"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings, words, tiny_data):
    with pytest.raises(BadInput, match=words):
        dpmi(**settings).check(tiny_data)


@pytest.fixture
def units_of(make_run, monkeypatch):
    """What the learner is given of some data."""
    taken = []
    honest = VaeLearner.fit

    def look(self, decoder, history, units, run, paid):
        taken.append(units)
        return honest(self, decoder, history, units, run, paid)

    monkeypatch.setattr(VaeLearner, "fit", look)

    def find(data, **settings):
        dpmi(**settings).fit(data, make_run(noise_multiplier=2.0))
        return taken.pop().values

    return find


def others_changed(data):
    """All records but the first are turned into negatives; latents that were kept are of others."""
    pixels = 1 - data.private.pixels
    pixels[0] = data.private.pixels[0]
    return replace(data, private=replace(data.private, pixels=pixels), fingerprint="changed")


@pytest.mark.parametrize("combo", [c for c in get_args(Combo) if c.endswith("vae")])
def test_the_unit_of_a_record_does_not_depend_on_other_records(combo, tiny_data, units_of):
    settings = {"combo": combo, "public_steps": 30, "ascent_steps": 10}
    units = units_of(tiny_data, **settings)
    changed = units_of(others_changed(tiny_data), **settings)
    assert torch.allclose(units[0], changed[0], atol=2e-3)
    assert not torch.isclose(units[1:], changed[1:], atol=2e-2).all(1).any()


def test_the_scale_of_units_comes_from_public_records_alone(tiny_data, make_run):
    def scale(data):
        module = dpmi(scale="whitened").fit(data, make_run(noise_multiplier=2.0)).module
        return torch.cat([module.mean[None], module.matrix])

    own = scale(tiny_data)
    assert torch.equal(own, scale(others_changed(tiny_data)))
    images = tiny_data.public.images
    other_public = replace(tiny_data.public, images=replace(images, pixels=images.pixels / 2))
    assert not torch.allclose(own, scale(replace(tiny_data, public=other_public)), atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "noise", "saves"),
    [
        ({"combo": "ae-enc-vae"}, 2.0, 4),
        ({"combo": "ae-enc-gan"}, 2.0, 3),
        # Every class saves after each of two steps and at the end: stopped in the second one.
        ({"combo": "ae-enc-gan", "classes": "per-class"}, None, 4),
        ({"combo": "ae-enc-vae", "classes": "per-class", "snapshots": 2}, None, 5),
    ],
    ids=str,
)
def test_a_stopped_run_goes_on_to_the_same_release(
    settings, noise, saves, tiny_data, make_run, monkeypatch
):
    method = dpmi(**settings)
    whole = method.fit(tiny_data, make_run(key=5, noise_multiplier=noise))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, noise_multiplier=noise, folder="stopped")
    honest, done = Checkpoints.save, []

    def stop(self, stage, checkpoint):
        honest(self, stage, checkpoint)
        done.append(stage)
        if len(done) == saves:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            method.fit(tiny_data, run)
    resumed = make_run(key=5, noise_multiplier=noise, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    charged = len(run.ledger.entries)
    again = method.fit(tiny_data, resumed)
    assert len(resumed.ledger.entries) == charged
    for name, value in whole.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("classes", "sample_rate", "steps"), [("conditional", 20 / 60, 6), ("per-class", 20 / 20, 2)]
)
def test_at_a_noise_the_user_fixed_epsilon_is_the_true_one(
    classes, sample_rate, steps, tiny_data, make_run
):
    run = make_run(noise_multiplier=1.5)
    dpmi(classes=classes).fit(tiny_data, run)

    def epsilon(noise_multiplier):
        query = PoissonGradients(
            sample_rate=sample_rate,
            steps=steps,
            clip_norm=0.5,
            noise_multiplier=noise_multiplier,
            expected_batch_size=20,
        )
        return cost_of([query.event], 1e-5, Adjacency.ADD_REMOVE).epsilon

    assert run.ledger.epsilon == pytest.approx(epsilon(1.5))
    assert run.ledger.epsilon != pytest.approx(epsilon(1.45), rel=1e-3)
    assert run.facts["noise_multiplier"] == 1.5
    assert run.facts["steps"] == steps


def test_parts_of_a_ledger_carry_the_numbers_of_the_whole_dataset(tiny_data, make_run):
    run = make_run(epsilon=10.0)
    selected = replace(tiny_data, selected=(0, 2, 4))
    Dpmi(**TINY, classes="per-class").fit(selected, run)
    assert [entry.part for entry in run.ledger.entries] == [
        f"training records / classes {number}" for number in (0, 2, 4)
    ]


def test_a_run_that_goes_on_has_the_public_model_it_began_with(tiny_data, make_run, own_cache):
    """Also where the cache is gone and a new model would be another one."""
    first = make_run(epsilon=10.0, folder="same")
    began = Dpmi(**TINY).fit(tiny_data, first).module
    other = replace(tiny_data.public.images, pixels=1 - tiny_data.public.images.pixels)
    changed = replace(tiny_data, public=replace(tiny_data.public, images=other))
    went_on = Dpmi(**TINY).fit(changed, make_run(epsilon=10.0, folder="same")).module
    for name, value in began.public_model.state_dict().items():
        assert torch.equal(value, went_on.public_model.state_dict()[name])
    assert torch.equal(began.matrix, went_on.matrix)


def test_more_critic_steps_than_steps_are_refused(tiny_data):
    method = Dpmi(**{**TINY, "combo": "ae-enc-gan", "critic_steps": 50})
    with pytest.raises(BadInput, match="critic_steps 50 are more than all"):
        method.check(tiny_data)


def test_the_run_says_what_is_inside_its_release_without_noise(tiny_data, make_run):
    run = make_run(epsilon=10.0)
    Dpmi(**TINY, classes="single").fit(tiny_data, run)
    inside = run.facts["declared"]["inside the release"]
    assert "the public model" in inside and "labelling records" in inside
