"""Which measurements belong together, and how they are taken of any release or any set of images.

`quick` is what every run measures of itself, `small` what it measures of a set of a few images;
`paper` adds the six architectures of Private Set Generation and Inception's scores. Every metric
says what it read. With reference `private`, or a test set that is private, that is `private`: shown
to the owner of the data and never recorded.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpray.contract import Classifier, Release, Synthesizer
from dpray.data.records import Dataset, TrainingData
from dpray.errors import BadInput, unknown
from dpray.evaluation.downstream import CLASSIFIERS, LOGISTIC, Score, downstream
from dpray.evaluation.fidelity import Fidelity, fidelity
from dpray.evaluation.judge import Reference
from dpray.evaluation.metrics import Metric, Source
from dpray.evaluation.synthetic import Synthetic
from dpray.evaluation.training import SMALL
from dpray.models.architectures import ARCHITECTURES, refuse_too_small
from dpray.models.generators import ImageSet
from dpray.pool import Pool

HEADLINE = "cnn"  # its accuracy is the `test_accuracy` of a synthesizer ...
SET_HEADLINE = "convnet"  # ... and this one's that of a small set of images
# Published are 1,000, which take ten minutes a network on one core for 100 images. In a trial
# with networks of width 32, 300 gave no more than 100.
_SET_EPOCHS = 150
Say = Callable[[str], None]


@dataclass(frozen=True)
class Suite:
    name: str
    classifiers: tuple[str, ...]
    runs: int  # of every classifier, each from its own seed
    inception: bool
    headline: str = HEADLINE
    epochs: Mapping[str, int] = field(default_factory=dict)  # by classifier; else its own number
    num_images: int | None = None  # drawn from a generator; None: about as many as records
    fidelity: bool = True  # whether images are held against real ones, which needs a judge


_YARDSTICKS = (LOGISTIC, "mlp", HEADLINE)
SUITES = {
    suite.name: suite
    for suite in (
        Suite("quick", _YARDSTICKS, runs=1, inception=False),
        Suite(
            "small",
            (LOGISTIC, "mlp", SET_HEADLINE),
            runs=3,
            inception=False,
            headline=SET_HEADLINE,
            epochs={SET_HEADLINE: _SET_EPOCHS},
        ),
        Suite("paper", (*_YARDSTICKS, *ARCHITECTURES), runs=3, inception=True),
    )
}


def find_suite(
    name: str, *, classifiers: Sequence[str] | None = None, runs: int | None = None
) -> Suite:
    """A suite by name, with other classifiers or another number of runs where they are given."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    if runs is not None and runs < 1:
        raise BadInput(f"{runs} runs are out of range: it must be at least 1")
    suite = SUITES[name]
    chosen = tuple(dict.fromkeys(classifiers or suite.classifiers))  # named twice is named once
    for classifier in chosen:
        if classifier not in CLASSIFIERS:
            raise unknown("classifier", classifier, CLASSIFIERS)
    return replace(suite, classifiers=chosen, runs=runs or suite.runs)


def check_suite(suite: Suite, data: TrainingData) -> None:
    """Refuses a suite by which images of such data get no score, before anything is charged."""
    for name in suite.classifiers:
        if name not in CLASSIFIERS:
            raise unknown("classifier", name, CLASSIFIERS)
        if name in ARCHITECTURES:
            refuse_too_small(name, data.shape)
    if suite.headline not in suite.classifiers:
        raise BadInput(
            f"the score of suite {suite.name} is the accuracy of {suite.headline}, which it does "
            f"not train; choose from: {', '.join(suite.classifiers) or 'none'}"
        )
    if suite.runs < 1:
        raise BadInput(f"{suite.runs} runs are out of range: it must be at least 1")
    if suite.num_images is not None and suite.num_images < data.num_classes:
        raise BadInput(
            f"{suite.num_images} images are fewer than the {data.num_classes} classes of "
            f"{data.name}: every class needs one"
        )


def suite_of_run(release: Synthesizer) -> Suite:
    """What a run measures of the images it released."""
    is_small_set = isinstance(release.module, ImageSet) and len(release.module.labels) <= SMALL
    return SUITES["small" if is_small_set else "quick"]


def refuse_private_hold_out(dataset: Dataset, reference: Reference) -> None:
    if not dataset.test_is_public and reference == "test":
        raise BadInput(
            f"the hold-out of {dataset.train.name} is private: a run pays for its accuracy and "
            "records it; --reference private shows un-noised figures that must not be published"
        )


def refuse_misfit(release: Release, data: TrainingData) -> None:
    """A label is a place in the list of classes: both lists must be the same, in order."""
    if release.shape != data.shape:
        raise BadInput(
            f"the {release.kind} is for images of shape {release.shape}, those of {data.name} "
            f"are {data.shape}"
        )
    if release.class_names != data.class_names:
        raise BadInput(
            f"the {release.kind} has the classes {_listed(release.class_names)}, {data.name} has "
            f"{_listed(data.class_names)}; name the dataset as its run did, with classes and part"
        )


def check_images(images: Synthetic, dataset: Dataset, suite: Suite, reference: Reference) -> None:
    """Refuses what cannot be measured before a judge or a classifier is trained for it."""
    refuse_private_hold_out(dataset, reference)
    for name in suite.classifiers:
        if name in ARCHITECTURES:
            refuse_too_small(name, dataset.train.shape)
    if len(images.labels.unique()) < 2:
        raise BadInput("the synthetic images are all of one class: a classifier needs at least two")


def measure_images(
    images: Synthetic,
    dataset: Dataset,
    suite: Suite,
    *,
    pool: Pool,
    seed: int = 0,
    reference: Reference = "test",
    inception_weights: Path | None = None,
    say: Say,
) -> list[Metric]:
    """All of `suite`, of synthetic images: train on them, test on real ones; then fidelity."""
    check_images(images, dataset, suite, reference)
    likeness = Fidelity((), ())
    if suite.fidelity:
        likeness = fidelity(
            images.pixels,
            dataset,
            reference=reference,
            inception=suite.inception,
            inception_weights=inception_weights,
            say=say,
        )
    for note in likeness.notes:
        say(f"note: {note}")
    scores = downstream(
        images.pixels,
        images.labels,
        dataset.test,
        num_classes=dataset.train.num_classes,
        classifiers=suite.classifiers,
        seeds=range(seed, seed + suite.runs),
        pool=pool,
        epochs=suite.epochs,
    )
    source = Source.PUBLIC_TEST if dataset.test_is_public else Source.PRIVATE
    shares = [[s.raw_correct / len(dataset.test) for s in own] for own in by_classifier(scores)]
    named = zip(suite.classifiers, shares, strict=True)
    return [
        *accuracies(dict(named), source, suite.headline),
        *convergence(scores, say),
        *likeness.metrics,
    ]


def measure_classifier(release: Classifier, dataset: Dataset, *, reference: Reference) -> Metric:
    """Accuracy on the test set, as it is."""
    refuse_private_hold_out(dataset, reference)
    refuse_misfit(release, dataset.train)
    correct = (release.predict(dataset.test.pixels) == dataset.test.labels).double().mean()
    source = Source.PUBLIC_TEST if dataset.test_is_public else Source.PRIVATE
    return Metric("test_accuracy", float(correct), source)


def by_classifier(scores: Sequence[Score]) -> list[list[Score]]:
    names = list(dict.fromkeys(score.classifier for score in scores))
    return [[score for score in scores if score.classifier == name] for name in names]


def accuracies(
    shares: dict[str, list[float]], source: Source, headline: str = HEADLINE
) -> list[Metric]:
    """Mean and deviation for each classifier; the headline's stands for the release as a whole."""
    metrics = []
    for name, values in shares.items():
        metrics.append(Metric(f"{name}_accuracy", statistics.fmean(values), source))
        if len(values) > 1 and name != LOGISTIC:  # which draws nothing at random
            metrics.append(Metric(f"{name}_accuracy_std", statistics.stdev(values), source))
    if headline in shares:
        metrics.insert(0, Metric("test_accuracy", statistics.fmean(shares[headline]), source))
    return metrics


def convergence(scores: Sequence[Score], say: Say) -> list[Metric]:
    """Whether logistic regression got to its end, as a number that stays with the record."""
    notes = [score.note for score in scores if score.classifier == LOGISTIC]
    for note in dict.fromkeys(note for note in notes if note):
        say(f"note: {note}")
    return [Metric("lr_converged", float(not any(notes)), Source.RELEASE)] if notes else []


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''} ({len(names)})"
