"""The arithmetic of FID and Inception Score, on features and probabilities from any network.

Frechet distance: that of two Gaussians with the moments of the features (Heusel et al. 2017).
Inception Score: how sure and how varied the class predictions are (Salimans et al. 2016).
All in float64: both subtract large numbers that nearly agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpray.errors import BadInput

# A split of fewer images scores low however varied they are: its classes are a poor sample.
_LEAST_PER_SPLIT = 100


@dataclass(frozen=True)
class Moments:
    mean: Tensor  # (D,) float64
    covariance: Tensor  # (D, D) float64
    count: int  # of the features they were taken over


def moments(features: Tensor) -> Moments:
    """Mean and unbiased covariance over the rows of `features` (N, D)."""
    count = len(features)
    if count < 2:
        raise BadInput(f"a covariance needs at least 2 images, there is {count or 'none'}")
    rows = features.double()
    mean = rows.mean(0)
    centred = rows - mean
    return Moments(mean, centred.T @ centred / (count - 1), count)


def frechet_distance(a: Moments, b: Moments) -> float:
    """|mean_a - mean_b|^2 + tr(A + B - 2 (A B)^(1/2)), the squared distance that FID reports.

    A B has the eigenvalues of sqrt(A) B sqrt(A), which is symmetric: no complex square root,
    and a covariance of low rank (fewer images than features) needs no special care.
    """
    if a.mean.shape != b.mean.shape:
        raise BadInput(
            f"features of size {len(a.mean)} and {len(b.mean)} have no distance; "
            "take both from the same network"
        )
    root = _square_root(a.covariance)
    product = root @ b.covariance @ root
    eigenvalues = torch.linalg.eigvalsh((product + product.T) / 2).clamp(min=0)
    shift = (a.mean - b.mean).square().sum()
    spread = a.covariance.trace() + b.covariance.trace() - 2 * eigenvalues.sqrt().sum()
    return max(0.0, float(shift + spread))


def inception_score(probabilities: Tensor, splits: int = 10) -> tuple[float, float]:
    """exp(mean KL of a prediction from the mean prediction): its mean and deviation over splits.

    The images are shuffled first, by a fixed order: splits of images that come sorted or in
    turn by class would hold one class each.
    """
    count = len(probabilities)
    if count == 0:
        raise BadInput("an Inception Score needs at least 1 image, there is none")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    splits = max(1, min(splits, count // _LEAST_PER_SPLIT))
    parts = probabilities.double()[order].tensor_split(splits)
    scores = torch.stack([_score(part) for part in parts])
    return float(scores.mean()), float(scores.std(correction=0))


def _score(probabilities: Tensor) -> Tensor:
    overall = probabilities.mean(0, keepdim=True)
    # xlogy: a class that is never predicted adds nothing, instead of 0 times infinity.
    divergence = torch.xlogy(probabilities, probabilities) - torch.xlogy(probabilities, overall)
    return divergence.sum(1).mean().exp()


def _square_root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    # Rounding makes zero eigenvalues slightly negative.
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T
