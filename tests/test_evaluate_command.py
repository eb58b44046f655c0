"""`dpray evaluate`: what is measured and shown, and what is refused before anything is trained."""

import json

import numpy as np
import pytest
import torch

from dpray import models
from dpray.cli import main
from dpray.contract import Classifier, Synthesizer
from dpray.evaluation import downstream, judge

NAMES = ("a", "b", "c")
SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))


def bars(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    images = np.random.default_rng(seed).random((count, 8, 8)) * 0.3
    for label in range(3):
        images[labels == label, 2 * label : 2 * label + 3] += 0.6
    return images, labels


@pytest.fixture
def public(tmp_path) -> str:
    (images, labels), (test, test_labels) = bars(60, 0), bars(30, 1)
    arrays = {"images": images, "labels": labels, "class_names": NAMES}
    np.savez(tmp_path / "public.npz", **arrays, test_images=test, test_labels=test_labels)
    return str(tmp_path / "public.npz")


@pytest.fixture
def own(tmp_path) -> str:
    """The user's records, with no test part: the hold-out is private."""
    images, labels = bars(200, 0)
    np.savez(tmp_path / "own.npz", images=images, labels=labels, class_names=NAMES)
    return str(tmp_path / "own.npz")


@pytest.fixture
def drawn(tmp_path) -> str:
    images, labels = bars(30, 2)
    np.savez(tmp_path / "drawn.npz", images=images, labels=labels, class_names=NAMES)
    return str(tmp_path / "drawn.npz")


@pytest.fixture
def decoder(tmp_path) -> str:
    torch.manual_seed(0)
    arguments = {"shape": list(SHAPE), "num_classes": 3, "latent": 3, "hidden": 8}
    module = models.build("conditional-decoder", **arguments)
    release = Synthesizer("conditional-decoder", arguments, module, NAMES, SHAPE)
    release.save(tmp_path / "decoder")
    return str(tmp_path / "decoder")


@pytest.fixture
def image_set(tmp_path) -> str:
    arguments = {"shape": list(SHAPE), "num_images": 12}
    module = models.build("image-set", **arguments)
    images, labels = bars(12, 3)
    module.images.copy_(torch.from_numpy(images)[:, None])
    module.labels.copy_(torch.from_numpy(labels))
    Synthesizer("image-set", arguments, module, NAMES, SHAPE).save(tmp_path / "set")
    return str(tmp_path / "set")


@pytest.fixture
def classifier(tmp_path) -> str:
    arguments = {"model": "linear", "features": "pixels", "shape": list(SHAPE), "num_classes": 3}
    module = models.build("image-classifier", **arguments)
    Classifier("image-classifier", arguments, module, NAMES, SHAPE).save(tmp_path / "classifier")
    return str(tmp_path / "classifier")


def evaluate(*words: object) -> int:
    return main(["evaluate", *map(str, words), "--on", "here"])


def as_json(capsys, *words: object) -> dict:
    assert evaluate(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_file_of_images_is_measured_whole(drawn, public, capsys):
    value = as_json(capsys, drawn, "--dataset", public, "--classifiers", "lr", "--quiet")
    assert {name: value[name] for name in ("subject", "dataset", "suite", "count", "seed")} == {
        **{"subject": drawn, "dataset": "public", "suite": "custom", "count": 30, "seed": 0},
    }
    metrics = {metric["name"]: metric for metric in value["metrics"]}
    assert metrics["lr_accuracy"] == {
        **{"name": "lr_accuracy", "value": 1.0, "source": "public test set"},
    }
    assert value["reference"] == "test" and value["recorded"] is False
    assert "test_images were declared as a test set: treated as public" in value["notes"]


def test_the_table_has_a_line_a_measurement_with_deviation_and_source(drawn, public, capsys):
    words = ("--classifiers", "lr", "mlp", "--runs", "2", "--quiet")
    assert evaluate(drawn, "--dataset", public, *words) == 0
    out, err = capsys.readouterr()
    head, *lines = out.splitlines()
    assert head.split() == ["MEASUREMENT", "VALUE", "READ"]
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert found["lr_accuracy"] == "100.00 % public test set"
    assert "+-" in found["mlp_accuracy"] and "mlp_accuracy_std" not in found
    assert found["lr_converged"] == "yes release alone"
    assert err == ""


def test_the_seed_and_the_count_say_which_images_are_drawn(decoder, public, capsys):
    def fid(*words):
        value = as_json(
            capsys, decoder, "--dataset", public, "--classifiers", "lr", "--quiet", *words
        )
        return value["count"], next(
            m["value"] for m in value["metrics"] if m["name"] == "domain_fid"
        )

    first = fid("--count", 30)
    assert first == fid("--count", 30, "--seed", 0) != fid("--count", 30, "--seed", 1)
    assert first[0] == 30


def test_a_set_of_images_is_measured_whole(image_set, public, capsys):
    words = ("--dataset", public, "--classifiers", "lr", "--quiet")
    assert as_json(capsys, image_set, *words)["count"] == 12
    assert evaluate(image_set, *words, "--count", 30) == 2
    assert "a set of images, measured whole" in capsys.readouterr().err


def test_a_classifier_has_its_accuracy_and_no_suite(classifier, public, capsys):
    value = as_json(capsys, classifier, "--dataset", public, "--quiet")
    assert [metric["name"] for metric in value["metrics"]] == ["test_accuracy"]
    assert value["suite"] is value["count"] is value["seed"] is None


def test_private_figures_are_marked_and_warned_of_even_when_quiet(drawn, own, capsys):
    words = ("--dataset", own, "--reference", "private", "--classifiers", "lr", "--quiet")
    assert evaluate(drawn, *words) == 0
    out, err = capsys.readouterr()
    marked = [line.split()[0] for line in out.splitlines() if "private: do not publish" in line]
    assert marked == ["lr_accuracy", "domain_fid", "domain_is"]
    assert err.count("\n") == 1 and "must not be published" in err
    sources = {m["name"]: m["source"] for m in as_json(capsys, drawn, *words)["metrics"]}
    assert sources["lr_accuracy"] == "private"


def test_notes_are_lines_on_standard_error(drawn, public, capsys):
    words = ("--dataset", public, "--classifiers", "lr")
    value = as_json(capsys, drawn, *words)
    assert evaluate(drawn, *words) == 0
    err = capsys.readouterr().err
    assert value["notes"]
    assert all(f"note: {note}\n" in err for note in value["notes"])


REFUSED = [
    ("drawn", ["--suite", "papre"], "did you mean 'paper'"),
    ("drawn", ["--classifiers", "cnm"], "did you mean 'cnn'"),
    ("drawn", ["--classifiers", "vgg11"], "at least 28x28"),
    ("drawn", ["--runs", "0"], "at least 1"),
    ("drawn", ["--seed", "-1"], "--seed -1 is out of range"),
    ("drawn", ["--count", "9"], "measured whole"),
    ("drawn", ["--address", "10.0.0.5:6379"], "--address needs --on ray"),
    ("drawn", ["--inception-weights", "gone.pth"], "needs --suite paper"),
    ("drawn", ["--suite", "paper", "--inception-weights", "gone.pth"], "no such file"),
    ("decoder", ["--count", "2"], "2 images are fewer than the 3 classes"),
    ("decoder", ["--count", "0"], "--count 0 is out of range"),
    ("decoder", ["--count", str(10**9)], "from 1 to 1,000,000"),
    ("decoder", ["--dataset", "digits"], "shape (1, 8, 8), those of digits are (1, 28, 28)"),
    ("classifier", ["--classifiers", "lr", "--runs", "2"], "leave out --classifiers, --runs"),
    ("classifier", ["--suite", "quick"], "leave out --suite"),
    ("drawn", ["--dataset", "gone.npz"], "no file or folder 'gone.npz'"),
]


@pytest.mark.parametrize(("model", "words", "message"), REFUSED)
def test_a_mistake_is_one_line_before_anything_is_trained(
    model, words, message, public, request, monkeypatch, capsys
):
    monkeypatch.setattr(judge, "train_judge", pytest.fail)
    monkeypatch.setattr(downstream, "train_and_count", pytest.fail)
    given = ["--dataset", public, "--quiet", *words]
    assert evaluate(request.getfixturevalue(model), *given) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("model", ["drawn", "decoder", "classifier"])
def test_a_private_hold_out_is_refused_unless_asked_for(model, own, request, capsys):
    assert evaluate(request.getfixturevalue(model), "--dataset", own, "--quiet") == 2
    assert "hold-out of own is private" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["decoder", "classifier"])
def test_other_classes_are_refused_by_name(model, tmp_path, public, request, capsys):
    with np.load(public) as arrays:
        changed = {**arrays, "class_names": ("a", "c", "b")}
    np.savez(tmp_path / "other.npz", **changed)
    words = ("--dataset", tmp_path / "other.npz", "--quiet")
    assert evaluate(request.getfixturevalue(model), *words) == 2
    assert "has the classes a, b, c (3), other has a, c, b (3)" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_one_line(public, capsys):
    assert evaluate("gone.npz", "--dataset", public) == 2
    assert capsys.readouterr().err == "dpray: no file gone.npz\n"


def test_help_teaches_with_examples_and_suites(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    out = capsys.readouterr().out
    assert "dpray evaluate dpray-mnist-dp-merf --dataset mnist" in out
    assert "quick   lr mlp cnn" in out and "not recorded" in out
