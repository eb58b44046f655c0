"""Continual: tasks disjoint by label, each charged alone, learnt one after another."""

import dataclasses

import numpy as np
import pytest
import torch

from dpray.checkpoints import Checkpoints
from dpray.contract import load_release
from dpray.data.records import TrainingData
from dpray.data.tasks import task_data
from dpray.errors import BadInput
from dpray.execute import execute
from dpray.methods.continual import Continual
from dpray.methods.dp_sgd import DPSgd
from dpray.methods.psg import Psg
from dpray.privacy.accounting import Adjacency
from dpray.privacy.card import verify
from dpray.spec import RunSpec

SGD = {"learner": "dp-sgd", "learner_settings": "features=pixels batch_size=10 steps=4"}
MERF = {
    "learner": "dp-merf",
    "learner_settings": "frequencies=20 hidden=8 steps=3 images_per_class=2",
}
PSG = {
    "learner": "psg",
    "learner_settings": "spc=2 width=4 iterations=1 outer=2 inner=1 pixel_steps=2 batch_size=10",
}


@pytest.fixture
def four(tiny_data) -> TrainingData:
    """The tiny images in four classes: fifteen records each, by row."""
    private = dataclasses.replace(tiny_data.private, labels=torch.arange(60) % 4)
    return dataclasses.replace(tiny_data, private=private, class_names=("a", "b", "c", "d"))


def same(one, other) -> bool:
    pairs = zip(one.module.state_dict().values(), other.module.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("settings", [SGD, MERF, PSG])
def test_all_tasks_together_cost_what_one_of_them_costs(settings, four, make_run):
    run = make_run(noise_multiplier=3.0)
    release = Continual(**settings).fit(four, run)
    parts = [entry.part for entry in run.ledger.entries]
    assert parts == ["training records / classes 0, 1", "training records / classes 2, 3"]
    together = run.ledger.epsilon
    entries = list(run.ledger.entries)
    run.ledger.entries[:] = entries[:1]
    assert run.ledger.epsilon == together
    run.ledger.entries[:] = [dataclasses.replace(e, part=parts[0]) for e in entries]
    assert run.ledger.epsilon > together
    assert release.tasks == ((0, 1), (2, 3))


def test_replace_one_is_refused_and_nothing_is_charged(tmp_path):
    spec = RunSpec(
        method="continual",
        dataset="digits",
        epsilon=1.0,
        settings=SGD,
        adjacency=Adjacency.REPLACE,
    )
    with pytest.raises(BadInput, match="need add-or-remove-one neighbours"):
        execute(spec)
    [ledger] = (tmp_path / "home" / "runs").glob("*/private/ledger.jsonl")
    assert len(ledger.read_text().splitlines()) == 1  # its header


def test_tasks_of_equal_records_get_different_noise_keys_and_public_draws(four, make_run):
    run = make_run()
    one, two = (run.part_of(f"task {i}", f"training records / classes {i}") for i in (1, 2))
    assert not torch.equal(one.key.normals("noise", 0, 5), two.key.normals("noise", 0, 5))
    assert not torch.equal(one.key.normals("noise", 0, 5), run.key.normals("noise", 0, 5))
    assert len({one.seed, two.seed, run.seed}) == 3
    assert one.checkpoints.folder != two.checkpoints.folder
    again = make_run().part_of("task 1", "training records / classes 1")
    assert torch.equal(one.key.normals("noise", 0, 5), again.key.normals("noise", 0, 5))
    assert one.seed == again.seed


def test_a_task_sees_its_own_records_and_a_public_number_of_them(four):
    labels = four.private.labels.clone()
    labels[:4] = 3  # fewer than an even share are left in the task
    skewed = dataclasses.replace(four, private=dataclasses.replace(four.private, labels=labels))
    task = task_data(skewed, (2, 0), own_classes=True)
    assert task.num_records == task_data(four, (2, 0), own_classes=True).num_records == 30
    assert len(task.private) == 28
    assert set(task.private.ids.tolist()) == {r for r in range(4, 60) if r % 4 in (0, 2)}
    assert task.private.labels.tolist() == [
        int(r % 4 == 0) for r in range(4, 60) if r % 4 in (0, 2)
    ]
    assert task.class_names == ("c", "a")
    whole = task_data(skewed, (2, 0), own_classes=False)
    assert set(whole.private.labels.tolist()) == {0, 2} and whole.num_classes == 4
    assert len({task.fingerprint, whole.fingerprint, skewed.fingerprint}) == 3


def test_features_of_a_task_are_those_of_its_own_records(four, make_run):
    from dpray.methods import dp_sgd
    from dpray.models.classifiers import ImageClassifier

    classifier = ImageClassifier("linear", "scatter", four.shape, 4)
    run = make_run()
    every = dp_sgd._inputs(four, classifier, "scatter", run)  # leaves a cache behind
    for classes in ((0, 1), (2, 3)):
        task = task_data(four, classes, own_classes=False)
        own = dp_sgd._inputs(task, classifier, "scatter", run)
        assert torch.equal(own, every[task.private.ids])


@pytest.mark.parametrize("settings", [SGD, MERF])
def test_a_stop_in_the_second_task_leaves_the_first_alone(settings, four, make_run, monkeypatch):
    whole = Continual(**settings).fit(four, make_run(key=5, noise_multiplier=2.0))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped", noise_multiplier=2.0)
    honest = Checkpoints.save

    def stop_in_the_second(self, stage, checkpoint):
        honest(self, stage, checkpoint)
        if self.folder.name == "task 2" and stage in ("train", "generator"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        Continual(**settings).fit(four, run)
    monkeypatch.setattr(Checkpoints, "save", honest)
    resumed = make_run(key=5, folder="stopped", noise_multiplier=2.0)
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = Continual(**settings).fit(four, resumed)
    assert len(run.ledger.entries) == 2
    assert all(name.startswith("task 2/") for name in resumed.ledger.asked)
    assert same(release, whole)
    assert resumed.facts["noise_multiplier"] == 2.0


def test_a_run_that_finished_every_task_and_stopped_reads_them_back(four, make_run):
    first, second = (make_run(key=1, folder="one", noise_multiplier=2.0) for _ in range(2))
    release = Continual(**MERF).fit(four, first)
    again = Continual(**MERF).fit(four, second)
    assert second.ledger.entries == [] and second.facts == first.facts
    assert same(release, again)


def test_a_classifier_keeps_what_it_was_after_each_task(four, make_run, tmp_path):
    release = Continual(**SGD).fit(four, make_run(noise_multiplier=2.0))
    first, second = release.module.after(1), release.module.after(2)
    assert not torch.equal(first.head[1].weight, second.head[1].weight)
    pixels = four.private.pixels[:5]
    assert torch.equal(release.module(pixels), second(pixels))
    release.save(tmp_path / "release")
    again = load_release(tmp_path / "release")
    assert again.tasks == release.tasks and same(again, release)


def test_fine_tuning_starts_where_the_task_before_ended(four, make_run):
    learner = DPSgd(features="pixels", batch_size=10, steps=1, lr=1e-9, averaging=0.0)
    first = learner.fit(four, make_run(key=1, noise_multiplier=1.0))
    gone_on = learner.go_on(first, (2, 3), four, make_run(key=2, noise_multiplier=1.0))
    assert torch.allclose(gone_on.module.head[1].weight, first.module.head[1].weight, atol=1e-6)


def test_every_label_is_drawn_by_the_task_that_learnt_it(four, make_run):
    settings = {**MERF, "order": "3,1,0,2"}
    release = Continual(**settings).fit(four, make_run(noise_multiplier=2.0))
    labels = torch.tensor([0, 3, 1, 2, 3])
    drawn = release.sample(labels, torch.Generator().manual_seed(0))
    first, second = release.module.by_task
    rng = torch.Generator().manual_seed(0)
    assert torch.equal(drawn[[1, 2, 4]], first(torch.tensor([0, 1, 0]), rng))
    assert torch.equal(drawn[[0, 3]], second(torch.tensor([0, 1]), rng))
    with pytest.raises(BadInput, match="of no task"):
        release.sample(torch.tensor([4]), rng)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learner": "dp-sdg"}, "did you mean 'dp-sgd'"),
        ({"learner": "sgd"}, "sgd cannot be a learner: choose one of .*dp-merf"),
        ({"learner": "continual"}, "continual cannot be a learner"),
        ({"classes_per_task": 3}, "must divide them"),
        ({"classes_per_task": 0}, "must divide them"),
        ({"classes_per_task": 4}, "makes one task"),
        ({"order": "0,1,2"}, "each of the classes 0 to 3 once"),
        ({"order": "0,1,2,2"}, "each of the classes 0 to 3 once"),
        ({"order": "a,b,c,d"}, "each of the classes 0 to 3 once"),
        ({"learner_settings": "stepz=4"}, "did you mean 'steps'"),
        ({"learner_settings": "steps"}, "not of the form name=value"),
        ({"learner_settings": "batch_size=0"}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_a_record_is_read(settings, words, four):
    hidden = dataclasses.replace(four.private, labels=None, ids=None)
    with pytest.raises(BadInput, match=words):
        Continual(**{"learner": "dp-sgd", **settings}).check(
            dataclasses.replace(four, private=hidden)
        )


def test_ten_classes_come_in_the_published_order():
    assert Continual().tasks(10) == ((5, 6), (1, 2), (0, 8), (9, 3), (4, 7))
    assert Continual().tasks(4) == ((0, 1), (2, 3))


def test_a_private_hold_out_is_refused_in_one_line(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (80, 12, 12)).astype(np.uint8), np.arange(80) % 4
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    spec = RunSpec(method="continual", dataset=str(tmp_path / "own.npz"), epsilon=1.0, settings=SGD)
    with pytest.raises(BadInput, match="needs a public test set, which own has not"):
        execute(spec)
    assert not (tmp_path / "home" / "runs").exists()


def test_a_run_measures_every_task_and_its_card_verifies():
    spec = RunSpec(
        method="continual", dataset="digits", noise_multiplier=2.0, settings={**SGD, "order": ""}
    )
    result = execute(spec)
    names = {metric.name for metric in result.metrics}
    assert {f"accuracy_after_{task}" for task in range(1, 6)} <= names
    assert result.metric("test_accuracy") == result.metric("accuracy_after_5")
    assert verify(result.card).recomputed == pytest.approx(result.metric("epsilon"))
    text = result.card.text()
    assert "task 5/dp-sgd on training records / classes 4, 7" in text
    assert "a record that changes its label is in two parts" in text
    assert "sampling           within each of 5 tasks: Poisson" in text


def test_images_of_a_class_stay_as_its_task_left_them(four, make_run, monkeypatch):
    left = []
    real = Psg.go_on

    def go_on(self, earlier, classes, data, run):
        release = real(self, earlier, classes, data, run)
        left.append(release.module.images.clone())
        return release

    monkeypatch.setattr(Psg, "go_on", go_on)
    module = Continual(**PSG).fit(four, make_run(noise_multiplier=3.0)).module
    first, second = module.labels < 2, module.labels >= 2
    assert torch.equal(module.images[first], left[0][first])
    assert not torch.equal(module.images[second], left[0][second])


def test_a_generator_cannot_go_on_and_is_refused_before_a_run_is_made(four):
    settings = {**PSG, "learner_settings": "prior=generator"}
    with pytest.raises(BadInput, match="prior=none"):
        Continual(**settings).check(four)


def test_one_class_a_task_is_refused_for_what_is_fitted_to_each_task(four):
    with pytest.raises(BadInput, match="raise classes_per_task"):
        Continual(**MERF, classes_per_task=1).check(four)


class RecordingProgress:
    """Keeps all that a progress bar would show."""

    def __init__(self):
        self.shown = []

    def __call__(self, label, total):
        self.shown.append((label, total))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def advance(self, count=1):
        self.shown.append(count)

    def note(self, text):
        self.shown.append(text)


@pytest.mark.parametrize("settings", [SGD, MERF, PSG])
def test_progress_says_nothing_about_how_many_records_a_task_has(settings, four, make_run):
    """The same bars for even tasks and for one with three of sixty records."""
    few = (torch.arange(60) % 20 == 0).long()
    skewed = dataclasses.replace(four.private, labels=torch.arange(60) % 2 + 2 * few)
    bars = []
    for private in (four.private, skewed):
        run = make_run(noise_multiplier=3.0)
        run.progress = RecordingProgress()
        Continual(**settings).fit(dataclasses.replace(four, private=private), run)
        bars.append(run.progress.shown)
    assert bars[0] == bars[1] and bars[0]
