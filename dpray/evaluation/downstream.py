"""Train on synthetic images, test on real ones: what a synthetic set is worth to a classifier.

A job trains one classifier from one seed on synthetic images alone; the test set is read once, at
its end, for one count of correct predictions. Where the test images are private that count is
private too: it is called `raw_correct` and must not leave without noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpray.data.records import Images
from dpray.errors import BadInput, unknown
from dpray.evaluation.training import NETWORKS, logits_of, train_network
from dpray.models.architectures import ARCHITECTURES, refuse_too_small
from dpray.pool import Pool

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

LOGISTIC = "lr"
CLASSIFIERS: tuple[str, ...] = (LOGISTIC, *NETWORKS)


@dataclass(frozen=True)
class Job:
    classifier: str
    seed: int


@dataclass(frozen=True)
class Score:
    classifier: str
    seed: int
    raw_correct: int  # on the test set, and as private as that is
    note: str  # what must be said with the number, or nothing


@dataclass(frozen=True)
class Task:
    """What all jobs share."""

    images: Tensor
    labels: Tensor
    test: Images
    num_classes: int
    epochs: Mapping[str, int]  # by classifier; else its own number


def downstream(
    images: Tensor,
    labels: Tensor,
    test: Images,
    *,
    num_classes: int,
    classifiers: Sequence[str],
    seeds: Sequence[int],
    pool: Pool,
    epochs: int | Mapping[str, int] | None = None,
) -> list[Score]:
    """A score for every classifier and seed, in that order.

    `epochs` replaces the number that networks have by default, of all of them or by name; `lr`
    has none. Logistic regression draws nothing at random: it is trained once and its score stands
    for every seed.
    """
    if not isinstance(epochs, Mapping):
        epochs = {} if epochs is None else dict.fromkeys(classifiers, epochs)
    task = Task(images, labels, test, num_classes, epochs)
    _check(task, classifiers, seeds)
    jobs = [
        Job(name, seed)
        for name in classifiers
        for seed in (seeds[:1] if name == LOGISTIC else seeds)
    ]
    scores = pool.map(train_and_count, jobs, shared=task, label="downstream")
    found = {(score.classifier, score.seed): score for score in scores}
    return [
        replace(found[name, seeds[0] if name == LOGISTIC else seed], seed=seed)
        for name in classifiers
        for seed in seeds
    ]


def train_and_count(job: Job, task: Task) -> Score:
    """One job. The test set comes in only once training is over."""
    note = ""
    if job.classifier == LOGISTIC:
        model, note = _logistic(task.images, task.labels)
        predicted = torch.from_numpy(model.predict(task.test.pixels.flatten(1).numpy()))
    else:
        network = train_network(
            job.classifier,
            task.images,
            task.labels,
            num_classes=task.num_classes,
            seed=job.seed,
            epochs=task.epochs.get(job.classifier),
        )
        predicted = logits_of(network, task.test.pixels).argmax(1)
    raw_correct = int((predicted == task.test.labels).sum())
    return Score(job.classifier, job.seed, raw_correct, note)


def _logistic(images: Tensor, labels: Tensor) -> tuple[LogisticRegression, str]:
    """scikit-learn's, with its defaults. Not converging is usual with images, and is reported."""
    # Slow to import, and every run imports this module, also one that trains no such model.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(images.flatten(1).float().numpy(), labels.numpy())
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        return model, f"lr did not converge in {int(max(model.n_iter_))} iterations"
    return model, ""


def _check(task: Task, classifiers: Sequence[str], seeds: Sequence[int]) -> None:
    for name in classifiers:
        if name not in CLASSIFIERS:
            raise unknown("classifier", name, CLASSIFIERS)
    if not classifiers or not seeds:
        raise BadInput("a downstream evaluation needs at least one classifier and one seed")
    if min(task.epochs.values(), default=1) < 1:
        raise BadInput(f"epochs is {min(task.epochs.values())}; it must be at least 1")
    images, labels = task.images, task.labels
    if len(images) != len(labels):
        raise BadInput(f"there are {len(images)} synthetic images but {len(labels)} labels")
    if images.shape[1:] != task.test.pixels.shape[1:]:
        raise BadInput(
            f"synthetic images are {_by(images)}, test images {_by(task.test.pixels)}; "
            "they must have the same shape"
        )
    channels, height, width = images.shape[1:]
    for name in classifiers:
        if name in ARCHITECTURES:
            refuse_too_small(name, (channels, height, width))
    present = labels.unique().tolist()
    if len(present) < 2:
        raise BadInput(f"the synthetic set holds only the classes {present}; it must hold two")
    if present[0] < 0 or present[-1] >= task.num_classes:
        wrong = present[0] if present[0] < 0 else present[-1]
        raise BadInput(f"a synthetic label is {wrong}; labels are 0 to {task.num_classes - 1}")
    if not bool((images.min() >= 0) & (images.max() <= 1)):  # false for what is not a number, too
        raise BadInput("synthetic images must hold numbers from 0 to 1 only")


def _by(images: Tensor) -> str:
    return "x".join(str(size) for size in images.shape[1:])
