from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from dpray import models
from dpray.cli.sample import add_parser
from dpray.contract import Synthesizer
from dpray.errors import BadInput
from dpray.tracking import record
from dpray.tracking.pyfunc import ClassifierModel, SynthesizerModel, signature_of
from dpray.tracking.store import connect, experiment_id

PREDICT = """
import sys
import mlflow, numpy
model = mlflow.pyfunc.load_model(sys.argv[1])
images = numpy.load(sys.argv[2])
numpy.savez(sys.argv[3], labels=model.predict(images),
            probabilities=model.predict(images, params={"output": "probabilities"}))
"""


class Grey(nn.Module):
    """A generator: a flat image, as bright as its label and a draw say."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        draws = torch.rand(len(labels), generator=rng)
        flat = (labels * self.scale + draws * self.scale).reshape(-1, 1, 1, 1)
        return flat.expand(-1, 1, self.side, self.side)


@pytest.fixture
def synthesizer(monkeypatch: pytest.MonkeyPatch) -> Synthesizer:
    monkeypatch.setitem(models._TABLE, "grey", f"{__name__}:Grey")
    return Synthesizer("grey", {"side": 4}, Grey(4), ("a", "b"), (1, 4, 4))


def images(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).random((count, 1, 4, 4), dtype=np.float32)


def test_a_process_that_knows_only_mlflow_predicts_the_same(
    store, tmp_path: Path, make_result, monkeypatch
):
    result = make_result()
    uri = record(result)
    np.save(tmp_path / "images.npy", images(20))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    words = [uri, str(tmp_path / "images.npy"), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", PREDICT, *words], check=True, cwd=tmp_path, timeout=100)
    out = np.load(tmp_path / "out.npz")
    pixels = torch.from_numpy(images(20))
    assert out["labels"].tolist() == result.release.predict(pixels).tolist()
    np.testing.assert_allclose(out["probabilities"], result.release.probabilities(pixels))


def test_a_classifier_takes_images_in_every_usual_form(make_result):
    model = ClassifierModel(make_result().release)
    grey = (images() * 255).astype(np.uint8)
    wanted = model.predict((grey / 255).astype(np.float32)).tolist()
    assert model.predict(grey).tolist() == wanted
    assert model.predict(grey[:, 0]).tolist() == wanted
    assert model.predict(pd.DataFrame(grey.reshape(5, -1))).tolist() == wanted
    assert model.predict(images(0)).tolist() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (images() * 255, "divide by 255"),
        (images() - 0.5, "do not normalise"),
        (np.full((1, 1, 4, 4), np.nan, np.float32), "in \\[0, 1\\]"),
        (np.zeros((2, 1, 3, 3), np.float32), "not of shape"),
    ],
)
def test_images_of_another_scale_or_shape_are_refused(make_result, given, message):
    with pytest.raises(BadInput, match=message):
        ClassifierModel(make_result().release).predict(given)


def test_an_unknown_output_is_refused_with_the_choices(make_result):
    with pytest.raises(BadInput, match="choose from: labels, probabilities"):
        ClassifierModel(make_result().release).predict(images(), {"output": "label"})


def test_a_registered_classifier_states_its_signature(store, make_result):
    signature = signature_of(make_result().release)
    assert signature.inputs.inputs[0].shape == (-1, 1, 4, 4)
    assert signature.params.params[0].default == "labels"


def test_a_registered_synthesizer_samples_by_label_and_seed(
    store, make_result, synthesizer, monkeypatch
):
    import mlflow

    uri = record(replace(make_result(), release=synthesizer))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    model = mlflow.pyfunc.load_model(uri)
    drawn = model.predict(np.array([0, 1, 1]), params={"seed": 3})
    assert drawn.shape == (3, 1, 4, 4) and drawn.dtype == np.float32
    same = model.predict(pd.DataFrame({"label": [0, 1, 1]}), params={"seed": 3})
    np.testing.assert_array_equal(drawn, same)
    assert not np.array_equal(drawn, model.predict(np.array([0, 1, 1]), params={"seed": 4}))


def test_a_label_that_is_no_class_is_refused(synthesizer):
    with pytest.raises(BadInput, match="0 to 1"):
        SynthesizerModel(synthesizer).predict([0, 2])


def test_mlflow_the_release_and_the_command_draw_the_same_images(
    store, tmp_path: Path, make_result, monkeypatch, capsys
):
    import mlflow

    torch.manual_seed(0)
    arguments = {"shape": [1, 16, 16], "num_classes": 3, "latent": 4, "hidden": 8}
    module = models.build("conditional-decoder", **arguments)
    names = ("cat", "dog", "hen")
    release = Synthesizer("conditional-decoder", arguments, module, names, (1, 16, 16))
    uri = record(replace(make_result(), release=release))
    labels = np.array([2, 2, 2, 0, 0])
    wanted = release.sample(torch.from_numpy(labels), torch.Generator().manual_seed(3)).numpy()

    words = ["sample", uri, "--count", "5", "--labels", "hen", "0", "--seed", "3"]
    args = sample_parser().parse_args([*words, "--out", str(tmp_path / "drawn.npz")])
    assert args.handler(args) == 0
    assert "epsilon 0.926" in capsys.readouterr().err
    drawn = np.load(tmp_path / "drawn.npz")["images"]
    np.testing.assert_array_equal(drawn, (wanted * 255).round())

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    predicted = mlflow.pyfunc.load_model(uri).predict(labels, params={"seed": 3})
    np.testing.assert_array_equal(predicted, wanted)


def test_the_sample_grid_of_a_synthesizer_is_recorded_beside_its_picture(
    store, make_result, synthesizer
):
    result = replace(make_result(), release=synthesizer)
    result.folder.picture.write_bytes(b"a picture")
    result.folder.samples.write_bytes(b"a grid")
    record(result)
    client = connect()
    (run,) = client.search_runs([experiment_id(client)])
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"picture.png", "samples.png"} <= files


def sample_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser
