"""The images an evaluation is about: drawn from a release, or read from a file made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpray.contract import Synthesizer
from dpray.data.npz import read_npz
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.models.generators import ImageSet

MOST_IMAGES = 60_000
_FEWEST_IMAGES = 2_000


@dataclass(frozen=True)
class Synthetic:
    pixels: Tensor  # (N, C, H, W) in [0, 1]
    labels: Tensor  # (N,)


def num_images(num_records: int) -> int:
    """As many as the private set has, which is public: within reason."""
    return min(max(num_records, _FEWEST_IMAGES), MOST_IMAGES)


def draw(release: Synthesizer, count: int, seed: int) -> Synthetic:
    """`count` images, classes in turn; all there are, once each, where the release is a set."""
    if isinstance(release.module, ImageSet):
        # A learnt image may leave the range a little; `Synthesizer.sample` clamps as well.
        return Synthetic(release.module.images.clamp(0, 1), release.module.labels)
    if count < len(release.class_names):
        raise BadInput(
            f"{count} images are fewer than the {len(release.class_names)} classes: every class "
            "needs one"
        )
    labels = torch.arange(count) % len(release.class_names)
    return Synthetic(release.sample(labels, torch.Generator().manual_seed(seed)), labels)


def read_synthetic(path: Path, data: TrainingData) -> Synthetic:
    """Images of an .npz file, its classes matched with those of the dataset by name."""
    if not path.is_file():
        raise BadInput(f"no file {str(path)!r}")
    found = read_npz(path)
    images = found.train.to_images()
    shape = tuple(images.pixels.shape[1:])
    if shape != data.shape:
        raise BadInput(
            f"{path.name} holds images of shape {shape}, those of {data.name} are {data.shape}"
        )
    places = {name: place for place, name in enumerate(data.class_names)}
    strangers = [name for name in found.class_names if name not in places]
    if strangers:
        raise BadInput(
            f"{path.name} has a class {strangers[0]!r} that {data.name} has not: declare in its "
            f"array class_names which of these its labels are: {', '.join(data.class_names)}"
        )
    renumbered = torch.tensor([places[name] for name in found.class_names])
    return Synthetic(images.pixels, renumbered[images.labels])
