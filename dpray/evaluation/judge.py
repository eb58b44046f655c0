"""The domain classifier: a small network that knows this dataset, and judges images by it.

FID's Inception was trained on photographs, and its weights may be out of reach. The judge is
trained here, on one part of the reference records; another part gives the moments that
synthetic images are held against. With reference `test` both parts are public records. With
reference `private` the judge is itself private: it is kept on the private side only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dpray.data.fetch import to_stderr
from dpray.data.folders import data_cache, home
from dpray.data.records import Dataset, Images
from dpray.data.sources import Say
from dpray.data.splits import keyed_fraction, split
from dpray.errors import BadInput, StorageFailed, unknown
from dpray.evaluation.frechet import Moments, moments
from dpray.evaluation.metrics import Source
from dpray.models.batches import in_batches
from dpray.models.classifiers import ImageClassifier
from dpray.plain_classifier import train_classifier, untrained_classifier
from dpray.storage import clear_errors, private_folder, write_whole

Reference = Literal["test", "private"]

# Part of every cache key: raise it with any change, here or in how the classifier is trained, that
# alters what a judge says.
_RECIPE = 1
_SALT = f"dpray/judge/{_RECIPE}"
_MOST_TRAINING, _MOST_REFERENCE = 20_000, 10_000  # of private records
_FEWEST_RECORDS = 2
_PREDICTION_BATCH = 250


class TooFewRecords(BadInput):
    """There are no domain scores for such a dataset; everything else can be measured."""


@dataclass(frozen=True)
class Judge:
    classifier: ImageClassifier

    def features(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) in [0, 1] to (N, 128): what the last layer reads, after its ReLU."""
        below_last = self.classifier.head[:-1]
        return _predict(lambda part: below_last(self.classifier.features(part)), pixels)

    def probabilities(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) in [0, 1] to (N, number of classes)."""
        return _predict(lambda part: self.classifier(part).softmax(1), pixels)


def train_judge(images: Images, num_classes: int, seed: int = 0) -> Judge:
    """The same images and seed give the same judge."""
    return Judge(train_classifier(images, num_classes, seed))


def judge_for(
    dataset: Dataset, reference: Reference, say: Say = to_stderr
) -> tuple[Judge, Moments, Source]:
    """The judge of a dataset, what real images look like to it, and whose records it read.

    Guarantee: with reference `test` nothing but public test records is read. With `private`
    whatever is computed from the result carries Source.PRIVATE, and is refused by the logger.
    """
    training, held_back = _parts(dataset, reference)
    if min(len(training), len(held_back)) < _FEWEST_RECORDS:
        raise TooFewRecords(
            f"a judge needs at least {_FEWEST_RECORDS} records to learn from and as many to "
            f"compare with; the {reference} reference of {dataset.train.name} gives too few"
        )
    num_classes = dataset.train.num_classes
    path = _cache_file(training, held_back, num_classes, reference)
    source = Source.PUBLIC_TEST if reference == "test" else Source.PRIVATE
    untrained = Judge(
        untrained_classifier(training, num_classes, seed=0).eval().requires_grad_(False)
    )
    kept = _read(path, untrained)
    if kept is not None:
        return untrained, kept, source
    say(f"{dataset.train.name}: training the judge of synthetic images, once")
    judge = train_judge(training, num_classes)
    real = moments(judge.features(held_back.pixels))
    try:
        _write(path, judge, real)
    except StorageFailed as failure:
        say(f"the judge is not kept: {failure}")
    return judge, real, source


def _parts(dataset: Dataset, reference: Reference) -> tuple[Images, Images]:
    """(what trains the judge, what it compares with): no record is in both."""
    if reference == "test":
        if not dataset.test_is_public:
            raise BadInput(
                f"the hold-out of {dataset.train.name} is private, so images cannot be compared "
                "with it; --reference private shows figures that must not be published"
            )
        return split(dataset.test, 0.5, _SALT)
    if reference == "private":
        records = dataset.train.private
        # By a keyed order, not the first ones: files are often sorted by class.
        order = keyed_fraction(records.ids, _SALT).argsort(stable=True)
        for_training = min(_MOST_TRAINING, len(records) * 2 // 3)
        end = for_training + _MOST_REFERENCE
        return records[order[:for_training]], records[order[for_training:end]]
    raise unknown("reference", reference, ("test", "private"))


def _predict(fn: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    return in_batches(fn, pixels, _PREDICTION_BATCH, torch.device("cpu"))


def _cache_file(training: Images, held_back: Images, num_classes: int, reference: str) -> Path:
    digest = hashlib.sha256(f"{_RECIPE}/{reference}/{num_classes}".encode())
    for part in (training, held_back):
        for tensor in (part.pixels, part.labels, part.ids):
            digest.update(f"/{list(tensor.shape)}/".encode())
            digest.update(tensor.contiguous().numpy().data)
    if reference == "private":
        folder = private_folder(private_folder(home() / "private") / "judges")
    else:
        folder = data_cache() / "judges"
    return folder / f"{digest.hexdigest()[:32]}.safetensors"


def _write(path: Path, judge: Judge, real: Moments) -> None:
    weights = {f"judge.{name}": value for name, value in judge.classifier.state_dict().items()}
    count = torch.tensor(real.count)
    content = save({**weights, "mean": real.mean, "covariance": real.covariance, "count": count})
    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _read(path: Path, judge: Judge) -> Moments | None:
    """Fills `judge` from the cache; None, and no use of the judge, where no whole file is."""
    try:
        tensors = load_file(path)
        real = Moments(tensors.pop("mean"), tensors.pop("covariance"), int(tensors.pop("count")))
        weights = {name.removeprefix("judge."): value for name, value in tensors.items()}
        judge.classifier.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, RuntimeError):
        return None
    return real
