"""What a run measures of its own release, on a test set that is public or paid for.

Most runs are scored once, at their end. Where they are looked at on their way as well, every look
is a query of its own (`looks.py`).
"""

from __future__ import annotations

import math
from statistics import fmean

import torch
from torch import Tensor

from dpray.contract import Classifier, Release, Run, Synthesizer
from dpray.data.records import Dataset
from dpray.errors import BadInput
from dpray.evaluation.continual import measure_tasks
from dpray.evaluation.downstream import Score, downstream
from dpray.evaluation.metrics import Metric, Source
from dpray.evaluation.suite import (
    Say,
    Suite,
    accuracies,
    by_classifier,
    convergence,
    measure_classifier,
    measure_images,
    suite_of_run,
)
from dpray.evaluation.synthetic import Synthetic, draw, num_images
from dpray.privacy.ledger import HOLD_OUT
from dpray.privacy.mechanisms import noisy_sum
from dpray.privacy.queries import GaussianSum, PaidQuery

Look = tuple[int, int]  # its place, from 1, and how many there are
_ONLY_LOOK: Look = (1, 1)
_HOLD_OUT_QUERY = "hold-out accuracy"
# Where the run has no epsilon to calibrate to: epsilon 1 at delta 1e-5 for hold-out records.
_NOISE_WITHOUT_BUDGET = 3.7307


def evaluate(
    release: Release,
    dataset: Dataset,
    run: Run,
    say: Say,
    *,
    suite: Suite | None = None,
    look: Look = _ONLY_LOOK,
) -> list[Metric]:
    """All that is measured. `suite` replaces what a run usually measures of images.

    `look` says which score of how many this is: all of them share the budget of the hold-out.
    """
    if release.tasks:
        return measure_tasks(release, dataset, run)
    if isinstance(release, Classifier):
        if dataset.test_is_public:
            return [measure_classifier(release, dataset, reference="test")]
        return _paid_accuracy(release, dataset, run, look)
    if isinstance(release, Synthesizer):
        suite = suite or suite_of_run(release)
        count = suite.num_images or num_images(dataset.train.num_records)
        images = draw(release, count, run.seed)
        if dataset.test_is_public:
            return measure_images(images, dataset, suite, pool=run.pool, seed=run.seed, say=say)
        if suite.fidelity:
            say("note: domain FID and score left out: the hold-out is private")
        return _paid_downstream(images, dataset, suite, run, look, say)
    raise BadInput(f"no evaluation for a {release.kind}")


def _paid_accuracy(release: Classifier, dataset: Dataset, run: Run, look: Look) -> list[Metric]:
    """Accuracy on a private hold-out, as a noisy count.

    Guarantee: a hold-out record changes the count of correct predictions by at most one, and
    hold-out records are never trained on, so the charge stands beside that of the training.
    """
    test = dataset.test
    paid = _pay(run, look, num_counts=1)

    def release_count() -> Tensor:
        raw_correct = (release.predict(test.pixels) == test.labels).double().sum().reshape(1)
        return noisy_sum(raw_correct, paid=paid, key=run.key)

    accuracy = float(run.once(_stage(look), release_count)) / len(test)
    metric = Metric("test_accuracy", min(max(accuracy, 0.0), 1.0), Source.NOISY_HOLD_OUT)
    return [metric, _noise_of(paid, len(test))]


def _paid_downstream(
    images: Synthetic, dataset: Dataset, suite: Suite, run: Run, look: Look, say: Say
) -> list[Metric]:
    """The accuracy of every classifier on a private hold-out, from one vector of noisy counts.

    Guarantee: a hold-out record changes each of k counts, which are means over the networks of
    a classifier, by at most one, so the vector by at most the root of k. The classifiers are
    trained on the release alone.
    """
    test, names = dataset.test, suite.classifiers
    paid = _pay(run, look, num_counts=len(names))
    notes: list[Score] = []

    def release_counts() -> Tensor:
        raw_scores = downstream(
            images.pixels,
            images.labels,
            test,
            num_classes=dataset.train.num_classes,
            classifiers=names,
            seeds=range(run.seed, run.seed + suite.runs),
            pool=run.pool,
            epochs=suite.epochs,
        )
        notes.extend(raw_scores)
        raw_correct = torch.tensor(
            [fmean(score.raw_correct for score in own) for own in by_classifier(raw_scores)]
        )
        return noisy_sum(raw_correct, paid=paid, key=run.key)

    shares = (run.once(_stage(look), release_counts) / len(test)).clamp(0, 1).tolist()
    found = {name: [share] for name, share in zip(names, shares, strict=True)}
    return [
        *accuracies(found, Source.NOISY_HOLD_OUT, suite.headline),
        _noise_of(paid, len(test)),
        *convergence(notes, say),
    ]


def _noise_of(paid: PaidQuery[GaussianSum], num_records: int) -> Metric:
    """One standard deviation of the noise in each accuracy: a small hold-out says little."""
    noise = paid.query.noise_multiplier * paid.query.sensitivity / num_records
    return Metric("test_accuracy_noise", noise, Source.LEDGER)


def _pay(run: Run, look: Look, *, num_counts: int) -> PaidQuery[GaussianSum]:
    """All of the budget: hold-out records pay for nothing but their looks, each of which is alike.

    Guarantee: all looks at their one noise multiplier cost at most the budget together, whether
    or not each is taken: how many there are and their noise were fixed before the first. A look
    has a name of its own, by which its noise is keyed.
    """
    place, count = look

    def with_noise(noise: float) -> list[GaussianSum]:
        return [
            GaussianSum(
                name=_name(number, count),
                noise_multiplier=noise,
                sensitivity=math.sqrt(num_counts),
            )
            for number in range(1, count + 1)
        ]

    if not run.ledger.budget.is_finite:
        queries = with_noise(_NOISE_WITHOUT_BUDGET * math.sqrt(count))
    elif count == 1:
        queries = [run.ledger.calibrate(lambda noise: with_noise(noise)[0], part=HOLD_OUT)]
    else:
        queries = run.ledger.calibrate_together(with_noise, part=HOLD_OUT)
    return run.ledger.pay(queries[place - 1], part=HOLD_OUT)


def _name(place: int, count: int) -> str:
    return _HOLD_OUT_QUERY if count == 1 else f"{_HOLD_OUT_QUERY}, look {place} of {count}"


def _stage(look: Look) -> str:
    """Under which the noisy counts are kept; the last look is the end of the run."""
    place, count = look
    return "hold-out" if place == count else f"hold-out-look-{place}"
