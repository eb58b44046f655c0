"""How much synthetic images look like real ones: domain scores, and FID and Inception Score.

`domain_fid` and `domain_is` come from the judge of the dataset and need no download; `fid` and
`inception_score` are the published ones, on the network of pytorch-fid. Every figure carries
the source of the records that it was held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpray.data.records import Dataset
from dpray.data.sources import Say
from dpray.errors import BadInput
from dpray.evaluation.frechet import frechet_distance, inception_score, moments
from dpray.evaluation.inception import Inception, find_weights
from dpray.evaluation.judge import Reference, TooFewRecords, judge_for
from dpray.evaluation.metrics import Metric, Source

MOST_IMAGES = 10_000  # scored, of those given: more hardly move a score and cost time


@dataclass(frozen=True)
class Fidelity:
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]  # what was left out, and why; one line each


def fidelity(
    images: Tensor,
    dataset: Dataset,
    *,
    reference: Reference = "test",
    inception: bool,
    inception_weights: Path | None = None,
    say: Say,
) -> Fidelity:
    """Scores synthetic `images` (N, C, H, W) in [0, 1] against real ones.

    Guarantee: `images` are a release; what else is read is public where `reference` is `test`,
    and where it is `private` every metric says so and must not be published.
    """
    _check(images, dataset)
    scored = images[spread(len(images), MOST_IMAGES)]
    # Weights that cannot be used are refused before the judge is trained, not after.
    weights = find_weights(inception_weights, say) if inception else None
    source = Source.PUBLIC_TEST if reference == "test" else Source.PRIVATE
    metrics: list[Metric] = []
    notes: list[str] = []
    try:
        metrics += _domain_scores(scored, dataset, reference, say)
    except TooFewRecords as reason:
        notes.append(f"domain FID and score left out: {reason}")
    if weights is not None:
        pixels = dataset.test.pixels if reference == "test" else dataset.train.private.pixels
        metrics += _inception_scores(scored, pixels, weights, source, say)
    elif inception:
        notes.append(
            "FID and Inception Score left out: pytorch-fid's Inception weights are not in the "
            "cache and cannot be downloaded; give the file with --inception-weights"
        )
    return Fidelity(tuple(metrics), tuple(notes))


def _domain_scores(
    scored: Tensor, dataset: Dataset, reference: Reference, say: Say
) -> list[Metric]:
    judge, real, source = judge_for(dataset, reference, say)
    distance = frechet_distance(moments(judge.features(scored)), real)
    score, deviation = inception_score(judge.probabilities(scored))
    return [
        Metric("domain_fid", distance, source),
        Metric("domain_is", score, source),
        Metric("domain_is_std", deviation, source),
    ]


def spread(count: int, most: int) -> Tensor:
    """At most `most` of `count` rows: one from each of as many equal stretches.

    Not the first of each: in images that come in turn by class those could be of one class.
    """
    if count <= most:
        return torch.arange(count)
    starts = torch.arange(most + 1) * count // most
    within = torch.rand(most, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return starts[:-1] + (within * starts.diff()).long()


def _check(images: Tensor, dataset: Dataset) -> None:
    if len(images) < 2:
        raise BadInput(
            f"fidelity needs at least 2 images for a covariance, there is {len(images) or 'none'}"
        )
    if tuple(images.shape[1:]) != dataset.train.shape:
        raise BadInput(
            f"images of shape {tuple(images.shape[1:])} cannot be compared with those of "
            f"{dataset.train.name}, which are {dataset.train.shape}"
        )
    if not images.isfinite().all():
        raise BadInput("some images hold values that are not numbers, so they have no scores")


def _inception_scores(
    scored: Tensor, pixels: Tensor, weights: Path, source: Source, say: Say
) -> list[Metric]:
    network = Inception(weights)
    real = pixels[spread(len(pixels), MOST_IMAGES)]
    say(f"Inception features of {len(scored) + len(real)} images, on {network.device}")
    features = network.features(scored)
    score, deviation = inception_score(network.probabilities(features))
    distance = frechet_distance(moments(features), moments(network.features(real)))
    return [
        Metric("fid", distance, source),
        Metric("inception_score", score, source),
        Metric("inception_score_std", deviation, source),
    ]
