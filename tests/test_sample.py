"""`dpray sample`: what is drawn, where it goes, and what is refused before anything is drawn."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpray import models
from dpray.cli.sample import add_parser, draw
from dpray.contract import Classifier, Synthesizer
from dpray.data.datasets import load
from dpray.data.image_folder import read_image_folder
from dpray.data.npz import read_npz
from dpray.errors import BadInput, CannotResume
from dpray.privacy.accounting import Budget
from dpray.privacy.card import make_card
from dpray.privacy.ledger import Ledger
from dpray.privacy.queries import GaussianSum
from dpray.reporting.drawn import folder_names
from dpray.runs import make_folder
from dpray.spec import RunSpec

NAMES = ("cat", "dog", "T-shirt/top")


def make_synthesizer(channels: int = 1) -> Synthesizer:
    torch.manual_seed(0)
    shape = (channels, 8, 8)
    arguments = {"shape": list(shape), "num_classes": 3, "latent": 3, "hidden": 8}
    module = models.build("conditional-decoder", **arguments)
    return Synthesizer("conditional-decoder", arguments, module, NAMES, shape)


@pytest.fixture
def release_folder(tmp_path) -> str:
    make_synthesizer().save(tmp_path / "release")
    return str(tmp_path / "release")


@pytest.fixture
def run_id() -> str:
    """A finished run on disk whose noise came from a test key."""
    spec = RunSpec(method="dp-sgd", dataset="mnist", noise_multiplier=4.0)
    folder = make_folder("run-1", spec)
    ledger = Ledger.create(folder.ledger, Budget(100, 1e-5), subject={}, adjacency=spec.adjacency)
    ledger.pay(GaussianSum(name="sums", noise_multiplier=4.0))
    card = make_card(
        run_id="run-1",
        method="dp-sgd",
        dataset="mnist",
        ledger=ledger,
        facts={},
        public={},
        num_records=60_000,
        for_tests=True,
    )
    make_synthesizer().save(folder.release)
    card.write(folder.path)
    folder.write_json("result.json", {"run_id": "run-1", "metrics": []})
    return "run-1"


def sample(*words: object) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["sample", *map(str, words)])
    assert args.handler(args) == 0


def test_an_npz_is_balanced_and_can_be_trained_on_again(release_folder, tmp_path):
    out = tmp_path / "drawn.npz"
    sample(release_folder, "--count", 50, "--out", out)
    records = read_npz(out)
    assert np.bincount(records.train.labels).tolist() == [17, 17, 16]
    assert records.class_names == NAMES
    assert records.train.pixels.dtype == np.uint8 and records.train.pixels.shape == (50, 1, 8, 8)
    data = load(str(out), say=lambda text: None).train
    assert data.shape == (1, 8, 8) and data.num_records > 30


def test_the_seed_and_the_labels_say_which_images(release_folder, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        sample(release_folder, "--count", 6, "--seed", seed, "--out", tmp_path / f"{name}.npz")
    a, b, c = (np.load(tmp_path / f"{name}.npz")["images"] for name in "abc")
    rng = torch.Generator().manual_seed(3)
    wanted = make_synthesizer().sample(torch.tensor([0, 0, 1, 1, 2, 2]), rng)
    np.testing.assert_array_equal(a, (wanted * 255).round().numpy())
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_chunks_draw_what_one_call_draws():
    # Three latents an image: a chunk of another size would leave the generator elsewhere.
    release, labels = make_synthesizer(), torch.arange(2500) % 3
    whole = release.sample(labels, torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(draw(release, labels, 1), (whole * 255).round().numpy())


def test_labels_are_names_or_indices_and_share_the_count(release_folder, tmp_path, capsys):
    out = tmp_path / "drawn.npz"
    sample(release_folder, "--count", 5, "--labels", "2", "cat", "--out", out)
    records = read_npz(out)
    assert records.class_names == ("cat", "T-shirt/top")
    assert records.train.labels.tolist() == [1, 1, 1, 0, 0]
    assert "0 is 'cat', 1 is 'T-shirt/top'" in capsys.readouterr().err


def test_fewer_images_than_classes_name_the_drawn_classes_alone(release_folder, tmp_path):
    sample(release_folder, "--count", 2, "--out", tmp_path / "two.npz")
    assert read_npz(tmp_path / "two.npz").class_names == ("cat", "dog")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_class_folders_reads_back_as_it_was_drawn(tmp_path, channels):
    release, out = make_synthesizer(channels), tmp_path / "images"
    release.save(tmp_path / "release")
    sample(tmp_path / "release", "--count", 10, "--seed", 2, "--out", out)
    records = read_image_folder(out, say=pytest.fail)
    assert records.class_names == ("T-shirt-top", "cat", "dog")
    cats = records.train.pixels[records.train.labels == 1]
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(cats, draw(release, labels, 2)[:4])
    assert (out / "grid.png").is_file() and not list(tmp_path.glob(".*"))


def test_class_names_become_folder_names_that_are_safe_and_different():
    assert folder_names(["a/b", "a:b", "../x", ".hid", "", "A-B", "polar bear", "né"]) == [
        *("a-b", "a-b-1", "x", "hid", "class", "A-B-5", "polar bear", "né"),
    ]


def test_paths_are_printed_and_a_grid_lies_beside_the_file(release_folder, tmp_path, capsys):
    sample(release_folder, "--count", 4, "--out", tmp_path / "drawn.npz")
    assert capsys.readouterr().out == f"{tmp_path}/drawn.npz\n{tmp_path}/drawn.png\n"
    with Image.open(tmp_path / "drawn.png") as grid:
        assert grid.height == 3 * 58 + 2
        assert grid.getpixel((grid.width - 20, 100)) == 255  # the second class has one image


def test_a_run_says_its_epsilon_and_what_speaks_against_it(run_id, tmp_path, capsys):
    sample(run_id, "--count", 3, "--out", tmp_path / "drawn.npz", "--json")
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert value["privacy"]["epsilon"] == pytest.approx(0.926, abs=1e-3)
    assert value["privacy"]["fit_for_release"] is False
    assert value["grid"] == str(tmp_path / "drawn.png") and value["count"] == 3
    assert "epsilon 0.926" in err and "warning: not fit for release: the noise came" in err


def test_a_bare_folder_is_said_to_have_no_card(release_folder, tmp_path, capsys):
    sample(release_folder, "--count", 3, "--out", tmp_path / "drawn.npz", "--json")
    out, err = capsys.readouterr()
    assert json.loads(out)["privacy"] is None
    assert "no privacy card" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "0"], "at least 1"),
        (["--count", "9", "--labels", "cow"], "no class 'cow'; choose from: T-shirt/top, cat, dog"),
        (["--count", "9", "--labels", "3"], "no class '3'"),
        (["--count", "9", "--seed", "-1"], "--seed -1 is out of range"),
        (["--count", str(10**15)], "GB"),
        (["--count", "9", "--out", "no/such/folder.npz"], "there is no folder no/such"),
        (["--count", "9", "--out", "picture.png"], "neither an .npz file nor a folder"),
    ],
)
def test_a_mistake_is_refused_and_nothing_is_written(
    release_folder, tmp_path, monkeypatch, words, message
):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    with pytest.raises(BadInput, match=message):
        sample(release_folder, "--out", "drawn.npz", *words)
    assert list(Path().iterdir()) == []


def test_a_classifier_is_refused_as_what_it_is(tmp_path):
    arguments = {"model": "linear", "features": "pixels", "shape": [1, 8, 8], "num_classes": 3}
    module = models.build("image-classifier", **arguments)
    Classifier("image-classifier", arguments, module, NAMES, (1, 8, 8)).save(tmp_path / "release")
    with pytest.raises(BadInput, match="is a classifier: it draws no images"):
        sample(tmp_path / "release", "--count", 3, "--out", tmp_path / "drawn.npz")


def test_what_is_there_is_kept_unless_forced(release_folder, tmp_path):
    for name in ("drawn.npz", "drawn.png"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(BadInput, match=f"{name} is there already.*--force"):
            sample(release_folder, "--count", 3, "--out", tmp_path / "drawn.npz")
        with pytest.raises(BadInput, match="was not written by dpray sample"):
            sample(release_folder, "--count", 3, "--out", tmp_path / "drawn.npz", "--force")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    sample(release_folder, "--count", 3, "--out", tmp_path / "drawn.npz")
    sample(release_folder, "--count", 6, "--out", tmp_path / "drawn.npz", "--force")
    drawn = read_npz(tmp_path / "drawn.npz")
    assert len(drawn.train.labels) == 6
    assert any("drawn from" in note for note in drawn.notes)


def test_a_forced_folder_holds_nothing_of_the_earlier_draw(release_folder, tmp_path):
    out = tmp_path / "images"
    out.mkdir()  # empty: nothing to lose
    sample(release_folder, "--count", 9, "--out", out)
    with pytest.raises(BadInput, match="there already"):
        sample(release_folder, "--count", 2, "--out", out)
    sample(release_folder, "--count", 2, "--labels", "dog", "--out", out, "--force")
    assert sorted(path.name for path in out.rglob("*.png")) == ["0.png", "1.png", "grid.png"]


def test_force_does_not_delete_a_folder_of_somebody_else(release_folder, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_text("mine")
    with pytest.raises(BadInput, match="not written by dpray sample"):
        sample(release_folder, "--count", 2, "--out", tmp_path / "photos", "--force")
    assert (tmp_path / "photos" / "holiday.jpg").exists()


def test_a_model_that_cannot_be_opened_is_one_line(release_folder, run_id, tmp_path):
    def refused(model: object, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message) as caught:
            sample(model, "--count", 2, "--out", tmp_path / "drawn.npz")
        assert "\n" not in str(caught.value)

    refused(tmp_path, BadInput, "not a release folder")
    wide = replace(make_synthesizer(), arguments={**make_synthesizer().arguments, "hidden": 9})
    wide.save(Path(release_folder))
    refused(release_folder, BadInput, "not a whole release: .*size mismatch")
    (Path(release_folder) / "release.json").write_text("{")
    refused(release_folder, BadInput, "not a whole release")
    open_run = make_folder("run-2", RunSpec(method="sgd", dataset="mnist")).run_id
    refused(open_run, CannotResume, "not finished")
