"""What a registered model does once MLflow has loaded it, in a process that knows only MLflow.

`mlflow.pyfunc.load_model("models:/dpray-mnist-dp-sgd/1").predict(x)` calls `_load_pyfunc` with
the folder of the release: a recipe and safetensors weights. No pickle is read. Shapes: N images
or labels, C channels, H, W pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpray.contract import Classifier, Release, Synthesizer, load_release
from dpray.errors import BadInput, unknown

OUTPUTS = ("labels", "probabilities")


class ClassifierModel:
    """Images to class indices (N,), or to probabilities (N, classes)."""

    def __init__(self, release: Classifier) -> None:
        self.release = release

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        output = (params or {}).get("output", OUTPUTS[0])
        if output not in OUTPUTS:
            raise unknown("output", str(output), OUTPUTS)
        probabilities = self.release.probabilities(_pixels(model_input, self.release.shape))
        return (probabilities if output == "probabilities" else probabilities.argmax(1)).numpy()


class SynthesizerModel:
    """Labels (N,) to images (N, C, H, W), the same ones for the same seed."""

    def __init__(self, release: Synthesizer) -> None:
        self.release = release

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        labels = torch.as_tensor(np.asarray(model_input).reshape(-1).astype(np.int64))
        classes = len(self.release.class_names)
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise BadInput(f"labels must be 0 to {classes - 1}, one for each class")
        rng = torch.Generator().manual_seed(int((params or {}).get("seed", 0)))
        return self.release.sample(labels, rng).float().numpy()


def _pixels(model_input: Any, shape: tuple[int, int, int]) -> torch.Tensor:
    """(N, C, H, W) in [0, 1] from such an array, one without channels, or one image a row."""
    values = np.asarray(model_input)
    if np.issubdtype(values.dtype, np.integer):
        values = values / 255
    try:
        pixels = torch.from_numpy(values.astype(np.float32).reshape(-1, *shape))
    except ValueError:
        raise BadInput(f"images of shape {values.shape[1:]} are not of shape {shape}") from None
    if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise BadInput("pixels must be in [0, 1]; divide by 255, and do not normalise")
    return pixels


def _load_pyfunc(path: str) -> ClassifierModel | SynthesizerModel:
    """Called by MLflow, which finds it by this name."""
    release = load_release(Path(path))
    if isinstance(release, Classifier):
        return ClassifierModel(release)
    assert isinstance(release, Synthesizer)
    return SynthesizerModel(release)


def signature_of(release: Release) -> Any:
    """What goes in and comes out, from declared shapes: no record is needed to state it."""
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    images = Schema([TensorSpec(np.dtype(np.float32), (-1, *release.shape))])
    labels = Schema([TensorSpec(np.dtype(np.int64), (-1,))])
    if isinstance(release, Classifier):
        params = ParamSchema([ParamSpec("output", "string", OUTPUTS[0])])
        return ModelSignature(inputs=images, outputs=labels, params=params)
    params = ParamSchema([ParamSpec("seed", "long", 0)])
    return ModelSignature(inputs=labels, outputs=images, params=params)
