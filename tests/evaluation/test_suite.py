"""Suites: every metric names what it read, and what cannot be measured is refused in time."""

import pytest
import torch

from dpray import models
from dpray.contract import Classifier, Synthesizer
from dpray.data.records import Dataset
from dpray.errors import BadInput
from dpray.evaluation import judge
from dpray.evaluation.downstream import Score
from dpray.evaluation.metrics import Source
from dpray.evaluation.suite import (
    SUITES,
    accuracies,
    convergence,
    find_suite,
    measure_classifier,
    measure_images,
    refuse_misfit,
)
from dpray.evaluation.synthetic import Synthetic
from dpray.pool import SerialPool

ONLY_LR = find_suite("quick", classifiers=["lr"])


class CountingPool:
    """Trains nothing: a job with seed s has s of the test images right."""

    def map(self, fn, jobs, **options):
        return (Score(job.classifier, job.seed, job.seed, "") for job in jobs)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def public(tiny_data) -> Dataset:
    return Dataset(tiny_data, tiny_data.private[:40], test_is_public=True)


@pytest.fixture
def hold_out(tiny_data) -> Dataset:
    return Dataset(tiny_data, tiny_data.private[:40], test_is_public=False)


@pytest.fixture
def images(tiny_data) -> Synthetic:
    return Synthetic(tiny_data.private.pixels[:30], tiny_data.private.labels[:30])


def measured(images, dataset, suite=ONLY_LR, *, pool=None, say=lambda text: None, **options):
    pool = pool or SerialPool()
    return measure_images(images, dataset, suite, pool=pool, say=say, **options)


def sources(metrics) -> dict[str, Source]:
    return {metric.name: metric.source for metric in metrics}


def linear(data, class_names=None) -> Classifier:
    torch.manual_seed(0)
    shape = list(data.shape)
    arguments = {"model": "linear", "features": "pixels", "shape": shape, "num_classes": 3}
    module = models.build("image-classifier", **arguments)
    names = class_names or data.class_names
    return Classifier("image-classifier", arguments, module, names, data.shape)


def test_on_a_public_test_set_every_figure_is_public(images, public):
    metrics = measured(images, public)
    assert sources(metrics) == {
        "lr_accuracy": Source.PUBLIC_TEST,
        "lr_converged": Source.RELEASE,
        "domain_fid": Source.PUBLIC_TEST,
        "domain_is": Source.PUBLIC_TEST,
        "domain_is_std": Source.PUBLIC_TEST,
    }
    values = {metric.name: metric.value for metric in metrics}
    assert values["lr_accuracy"] > 0.9 and values["lr_converged"] == 1


def test_a_private_reference_marks_what_read_it_and_only_that(images, public):
    found = sources(measured(images, public, reference="private"))
    assert {n for n, s in found.items() if s is Source.PRIVATE} == {
        *("domain_fid", "domain_is", "domain_is_std"),
    }


def test_on_a_private_hold_out_all_but_the_release_is_private(images, hold_out):
    found = sources(measured(images, hold_out, reference="private"))
    assert {name for name, source in found.items() if source is not Source.PRIVATE} == {
        "lr_converged"
    }


def test_a_private_hold_out_is_not_measured_unasked(images, hold_out):
    with pytest.raises(BadInput, match=r"hold-out of tiny is private.*--reference private"):
        measured(images, hold_out)
    with pytest.raises(BadInput, match="hold-out of tiny is private"):
        measure_classifier(linear(hold_out.train), hold_out, reference="test")


def test_the_accuracy_of_a_classifier_is_the_share_of_right_predictions(public, hold_out):
    release = linear(public.train)
    test = public.test
    right = sum((release.module(test.pixels).argmax(1) == test.labels).tolist())
    metric = measure_classifier(release, public, reference="test")
    assert (metric.value, metric.source) == (right / 40, Source.PUBLIC_TEST)
    assert measure_classifier(release, hold_out, reference="private").source is Source.PRIVATE


def test_runs_give_mean_and_deviation_and_regression_no_deviation(images, public):
    suite = find_suite("quick", classifiers=["lr", "mlp", "cnn"], runs=3)
    metrics = measured(images, public, suite, pool=CountingPool(), seed=10)
    values = {metric.name: metric.value for metric in metrics}
    assert values["cnn_accuracy"] == values["test_accuracy"] == pytest.approx(11 / 40)
    assert values["cnn_accuracy_std"] == pytest.approx(1 / 40)
    assert values["lr_accuracy"] == pytest.approx(10 / 40)
    assert "lr_accuracy_std" not in values


def test_only_the_cnn_stands_for_the_release_as_a_whole():
    without = accuracies({"mlp": [0.5], "lr": [0.25]}, Source.PUBLIC_TEST)
    assert [metric.name for metric in without] == ["mlp_accuracy", "lr_accuracy"]
    with_it = accuracies({"lr": [0.25], "cnn": [0.5]}, Source.PUBLIC_TEST)
    assert (with_it[0].name, with_it[0].value) == ("test_accuracy", 0.5)


def test_regression_that_did_not_converge_is_noted_once_and_stays_as_a_number():
    said = []
    scores = [Score("lr", seed, 3, "lr did not converge in 100 iterations") for seed in (0, 1)]
    [metric] = convergence([*scores, Score("mlp", 0, 3, "")], said.append)
    assert (metric.name, metric.value, metric.source) == ("lr_converged", 0.0, Source.RELEASE)
    assert said == ["note: lr did not converge in 100 iterations"]
    assert convergence([Score("mlp", 0, 3, "")], pytest.fail) == []


def test_a_suite_can_be_changed_and_a_classifier_named_twice_counts_once():
    assert find_suite("paper").classifiers[:3] == SUITES["quick"].classifiers
    suite = find_suite("paper", classifiers=["lr", "lr", "mlp"], runs=2)
    assert (suite.classifiers, suite.runs, suite.inception) == (("lr", "mlp"), 2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "papre"}, "no suite 'papre' .did you mean 'paper'"),
        ({"name": "quick", "classifiers": ["cnm"]}, "no classifier 'cnm' .did you mean 'cnn'"),
        ({"name": "quick", "runs": 0}, "at least 1"),
    ],
)
def test_a_suite_that_does_not_exist_is_refused(words, message):
    with pytest.raises(BadInput, match=message):
        find_suite(**words)


def test_what_cannot_be_measured_is_refused_before_the_judge_is_trained(
    images, public, monkeypatch
):
    monkeypatch.setattr(judge, "train_judge", pytest.fail)
    with pytest.raises(BadInput, match="vgg11 needs images of at least 28x28"):
        measured(images, public, find_suite("quick", classifiers=["lr", "vgg11"]))
    one_class = Synthetic(images.pixels, torch.zeros_like(images.labels))
    with pytest.raises(BadInput, match="all of one class"):
        measured(one_class, public)


@pytest.mark.parametrize("names", [("a", "c", "b"), ("a", "b"), ("a", "b", "c", "d")])
@pytest.mark.parametrize("kind", [Classifier, Synthesizer])
def test_other_classes_or_another_order_of_them_are_a_misfit(tiny_data, names, kind):
    release = kind("any", {}, torch.nn.Identity(), names, tiny_data.shape)
    with pytest.raises(BadInput, match=f"the {kind.kind} has the classes {', '.join(names)}"):
        refuse_misfit(release, tiny_data)


def test_another_shape_is_a_misfit(tiny_data):
    release = Classifier("any", {}, torch.nn.Identity(), tiny_data.class_names, (3, 16, 16))
    with pytest.raises(BadInput, match=r"shape \(3, 16, 16\), those of tiny are \(1, 16, 16\)"):
        refuse_misfit(release, tiny_data)
