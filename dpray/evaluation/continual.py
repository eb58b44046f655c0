"""What a release learnt in tasks is worth after each of them, on all classes seen by then.

Class-incremental: nobody says which task a test image is from. A classifier is asked as it was
after the task, and chooses among the classes seen. A synthesizer is measured by fresh networks that
are trained on its images of the classes seen, and have as many outputs: those whose accuracy is
the headline of a run, so ConvNets for a small set of images and a CNN for what a generator draws.
Only a public test set is read here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpray.contract import Classifier, Release, Run, Synthesizer
from dpray.data.records import Dataset, Images
from dpray.errors import BadInput
from dpray.evaluation import downstream
from dpray.evaluation.metrics import Metric, Source
from dpray.evaluation.suite import suite_of_run
from dpray.evaluation.synthetic import Synthetic
from dpray.models.generators import ImageSet
from dpray.models.tasks import Snapshots

IMAGES_PER_CLASS = 2_000  # drawn from a generator: two classes of them are no small set any more


@dataclass(frozen=True)
class Job:
    seen: tuple[int, ...]  # classes, in the order of the tasks
    network: str
    seed: int


@dataclass(frozen=True)
class Shared:
    images: Synthetic
    test: Images
    epochs: Mapping[str, int]  # by network; else its own number


def measure_tasks(release: Release, dataset: Dataset, run: Run) -> list[Metric]:
    """`accuracy_after_1` and so on; `test_accuracy` is that after the last task.

    Left out is a task by which the classes seen have no test record yet.
    """
    if not dataset.test_is_public:
        raise BadInput(f"{dataset.train.name} has no public test set to measure each task on")
    seen = {t: sum(release.tasks[:t], ()) for t in range(1, len(release.tasks) + 1)}
    seen = {t: classes for t, classes in seen.items() if len(_of(classes, dataset.test))}
    if not seen:
        raise BadInput(f"the test set of {dataset.train.name} holds none of the classes")
    if isinstance(release, Classifier):
        shares = [[_share(release, t, classes, dataset.test)] for t, classes in seen.items()]
    elif isinstance(release, Synthesizer):
        shares = _shares_of_images(release, list(seen.values()), dataset.test, run)
    else:
        raise BadInput(f"no evaluation for a {release.kind} learnt in tasks")
    metrics = [Metric("test_accuracy", statistics.fmean(shares[-1]), Source.PUBLIC_TEST)]
    for task, values in zip(seen, shares, strict=True):
        name = f"accuracy_after_{task}"
        metrics.append(Metric(name, statistics.fmean(values), Source.PUBLIC_TEST))
        if len(values) > 1:
            metrics.append(Metric(f"{name}_std", statistics.stdev(values), Source.PUBLIC_TEST))
    return metrics


def _share(release: Classifier, task: int, seen: tuple[int, ...], test: Images) -> float:
    """The share of test records of `seen` that the classifier as it was after `task` gets right."""
    assert isinstance(release.module, Snapshots)
    snapshot = replace(release, module=release.module.after(task))
    own = _of(seen, test)
    predicted = snapshot.probabilities(own.pixels)[:, list(seen)].argmax(1)
    return float((predicted == own.labels).double().mean())


def _shares_of_images(
    release: Synthesizer, seen: Sequence[tuple[int, ...]], test: Images, run: Run
) -> list[list[float]]:
    """For every task the shares of test records that each of its networks gets right."""
    images = _images(release, run.seed)
    suite = suite_of_run(release)
    seeds = range(run.seed, run.seed + suite.runs)
    jobs = [Job(own, suite.headline, seed) for own in seen for seed in seeds]
    shared = Shared(images, test, suite.epochs)
    shares = list(run.pool.map(train_and_score, jobs, shared=shared, label="after each task"))
    return [shares[i : i + suite.runs] for i in range(0, len(shares), suite.runs)]


def _images(release: Synthesizer, seed: int) -> Synthetic:
    """All there are of a set; of a generator so many a class, whatever task it is of."""
    if isinstance(release.module, ImageSet):
        return Synthetic(release.module.images.clamp(0, 1).cpu(), release.module.labels.cpu())
    labels = torch.arange(len(release.class_names)).repeat(IMAGES_PER_CLASS)
    drawn = release.sample(labels, torch.Generator().manual_seed(seed))
    return Synthetic(drawn.cpu(), labels)


def train_and_score(job: Job, shared: Shared) -> float:
    """One job: a fresh network on images of the classes seen, then the test records of these."""
    chosen = _places(job.seen, shared.images.labels)
    own, test = chosen >= 0, _of(job.seen, shared.test)
    task = downstream.Task(
        shared.images.pixels[own], chosen[own], test, len(job.seen), shared.epochs
    )
    score = downstream.train_and_count(downstream.Job(job.network, job.seed), task)
    return score.raw_correct / len(test)


def _of(classes: tuple[int, ...], test: Images) -> Images:
    """The test records of `classes`, labels being places in that list."""
    places = _places(classes, test.labels)
    own = places >= 0
    return Images(test.pixels[own], places[own], test.ids[own])


def _places(classes: tuple[int, ...], labels: Tensor) -> Tensor:
    """Where in `classes` each label is, -1 where it is not."""
    places = torch.full_like(labels, -1)
    for place, label in enumerate(classes):
        places[labels == label] = place
    return places
