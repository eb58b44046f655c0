"""After each task: on the classes seen so far, by what was known by then."""

import pytest
import torch

from dpray import models
from dpray.contract import Classifier, Synthesizer
from dpray.data.records import Dataset, Images
from dpray.errors import BadInput
from dpray.evaluation import continual
from dpray.evaluation.in_run import evaluate
from dpray.evaluation.metrics import Source
from dpray.evaluation.suite import SUITES, Suite

TASKS = ((2, 0), (1, 3))


@pytest.fixture
def dataset(tiny_data) -> Dataset:
    """Images of four classes, each bright in rows of its own."""
    labels = torch.arange(40) % 4
    pixels = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.2
    for label in range(4):
        pixels[labels == label, :, 4 * label : 4 * label + 4] += 0.7
    records = Images(pixels, labels, torch.arange(40))
    data = tiny_data.__class__("four", records, 40, ("a", "b", "c", "d"), "four")
    return Dataset(data, records, test_is_public=True)


def found(release, dataset, run) -> dict:
    metrics = evaluate(release, dataset, run, lambda text: None)
    assert {metric.source for metric in metrics} == {Source.PUBLIC_TEST}
    return {metric.name: metric.value for metric in metrics}


def snapshots(dataset) -> Classifier:
    """The first knows bands of brightness of all classes, the second says class 3 to everything."""
    inner = {"model": "linear", "features": "pixels", "shape": [1, 16, 16], "num_classes": 4}
    arguments = {"count": 2, "model": "image-classifier", "arguments": inner}
    module = models.build("snapshots", **arguments)
    for one in (module.after(1), module.after(2)):
        torch.nn.init.zeros_(one.head[1].weight)
        torch.nn.init.zeros_(one.head[1].bias)
    bands = torch.zeros(4, 16, 16)
    for label in range(4):
        bands[label, 4 * label : 4 * label + 4] = 1
    with torch.no_grad():
        module.after(1).head[1].weight.copy_(bands.flatten(1))
        module.after(1).head[1].bias[1] = 100.0  # a class it has not seen yet: never chosen
        module.after(2).head[1].bias[3] = 1.0
    names = dataset.train.class_names
    return Classifier("snapshots", arguments, module, names, (1, 16, 16), tasks=TASKS)


def test_a_classifier_chooses_among_the_classes_seen_as_it_was_then(dataset, make_run):
    assert found(snapshots(dataset), dataset, make_run()) == {
        "test_accuracy": 0.25,
        "accuracy_after_1": 1.0,
        "accuracy_after_2": 0.25,
    }


def image_set(dataset) -> Synthesizer:
    """Five images a class; those of class 1 show class 3."""
    own = dataset.train.private[:20]
    module = models.build("image-set", shape=[1, 16, 16], num_images=20)
    module.images.copy_(own.pixels)
    module.images[own.labels == 1] = own.pixels[own.labels == 3]
    module.labels.copy_(own.labels)
    names = dataset.train.class_names
    return Synthesizer("image-set", {}, module, names, (1, 16, 16), tasks=TASKS)


def test_a_set_of_images_trains_networks_on_the_classes_seen_alone(dataset, make_run, monkeypatch):
    small = Suite("small", (), runs=2, inception=False, headline="mlp", epochs={"mlp": 60})
    monkeypatch.setitem(SUITES, "small", small)
    accuracies = found(image_set(dataset), dataset, make_run())
    assert accuracies["accuracy_after_1"] == 1.0
    assert accuracies["accuracy_after_1_std"] == 0.0
    assert 0.5 <= accuracies["accuracy_after_2"] <= 0.8
    assert accuracies["test_accuracy"] == accuracies["accuracy_after_2"]


def test_after_each_task_fresh_networks_are_asked_for_the_classes_seen_so_far(
    dataset, make_run, monkeypatch
):
    asked = []

    class WatchingPool:
        def map(self, fn, jobs, *, shared, **options):
            for job in jobs:
                asked.append((job.seen, job.network, job.seed))
                yield 0.5

    run = make_run()
    run.pool = WatchingPool()
    found(image_set(dataset), dataset, run)
    runs = SUITES["small"].runs
    assert [(seen, seed) for seen, network, seed in asked] == [
        (seen, seed) for seen in ((2, 0), (2, 0, 1, 3)) for seed in range(runs)
    ]


def test_a_generator_is_drawn_from_class_by_class(dataset, make_run, monkeypatch):
    monkeypatch.setattr(continual, "IMAGES_PER_CLASS", 5)
    monkeypatch.setitem(SUITES, "quick", Suite("quick", (), 1, False, "mlp", {"mlp": 1}))
    inner = {"shape": [1, 16, 16], "num_classes": 2, "latent": 2, "hidden": 4}
    parts = [
        {"model": "mlp-generator", "arguments": inner, "classes": list(classes)}
        for classes in TASKS
    ]
    module = models.build("by-task", parts=parts)
    names = dataset.train.class_names
    release = Synthesizer("by-task", {"parts": parts}, module, names, (1, 16, 16), tasks=TASKS)
    accuracies = found(release, dataset, make_run())
    assert set(accuracies) == {"test_accuracy", "accuracy_after_1", "accuracy_after_2"}


def test_a_task_without_a_test_record_is_left_out(dataset, make_run):
    test = dataset.test[dataset.test.labels % 2 == 1]
    late = Dataset(dataset.train, test, test_is_public=True)
    accuracies = found(snapshots(dataset), late, make_run())
    assert accuracies == {"test_accuracy": 0.5, "accuracy_after_2": 0.5}


def test_a_private_hold_out_is_not_read(dataset, make_run):
    hidden = Dataset(dataset.train, None, test_is_public=False)
    with pytest.raises(BadInput, match="no public test set"):
        evaluate(snapshots(dataset), hidden, make_run(), lambda text: None)
