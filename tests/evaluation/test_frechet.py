"""Frechet distance and Inception Score against answers that are known otherwise."""

import numpy as np
import pytest
import scipy.linalg
import torch

from dpray.errors import BadInput
from dpray.evaluation.frechet import Moments, frechet_distance, inception_score, moments
from dpray.torchvision_shim import import_torchvision


def gaussian(mean, covariance) -> Moments:
    return Moments(torch.tensor(mean).double(), torch.tensor(covariance).double(), 100)


def random_moments(seed: int, size: int = 6, rows: int = 40) -> Moments:
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=rng)
    return moments(torch.randn(rows, size, generator=rng) @ mixing + seed)


def test_moments_are_those_of_numpy():
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    found = moments(features)
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    np.testing.assert_allclose(found.mean, features.double().numpy().mean(0))
    np.testing.assert_allclose(found.covariance, np.cov(features.double().numpy(), rowvar=False))
    assert found.count == 50


def test_one_image_has_no_covariance():
    with pytest.raises(BadInput, match="at least 2 images, there is 1"):
        moments(torch.zeros(1, 4))


def test_diagonal_gaussians_are_as_far_apart_as_their_deviations():
    a = gaussian([0.0, 0.0, 0.0], np.diag([1.0, 4.0, 9.0]))
    b = gaussian([0.0, 0.0, 0.0], np.diag([4.0, 4.0, 1.0]))
    assert frechet_distance(a, b) == pytest.approx((1 - 2) ** 2 + 0 + (3 - 1) ** 2)


def test_a_shift_of_the_mean_counts_squared():
    covariance = [[2.0, 0.5], [0.5, 1.0]]
    a, b = gaussian([0.0, 0.0], covariance), gaussian([3.0, -4.0], covariance)
    assert frechet_distance(a, b) == pytest.approx(25.0)


def test_covariances_that_do_not_commute_agree_with_scipy():
    a, b = random_moments(1), random_moments(2)
    assert not torch.allclose(a.covariance @ b.covariance, b.covariance @ a.covariance)
    root = scipy.linalg.sqrtm((a.covariance @ b.covariance).numpy()).real
    spread = a.covariance.trace() + b.covariance.trace() - 2 * np.trace(root)
    expected = float((a.mean - b.mean).square().sum() + spread)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)


def test_the_distance_is_that_of_pytorch_fid():
    import_torchvision()
    from pytorch_fid.fid_score import calculate_frechet_distance

    a, b = random_moments(3), random_moments(4)
    theirs = calculate_frechet_distance(
        a.mean.numpy(), a.covariance.numpy(), b.mean.numpy(), b.covariance.numpy()
    )
    assert frechet_distance(a, b) == pytest.approx(theirs, rel=1e-8)


def test_the_same_features_are_at_no_distance_even_with_fewer_images_than_features():
    low_rank = random_moments(5, size=30, rows=8)
    assert 0 <= frechet_distance(low_rank, low_rank) < 1e-4


def test_halves_of_the_same_sample_are_close():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(8000, 5, generator=rng) @ torch.randn(5, 5, generator=rng)
    first, second = moments(rows[:4000]), moments(rows[4000:])
    # The means alone differ by 2/4000 of the variance, the covariances by about as much.
    assert 0 < frechet_distance(first, second) < 0.003 * first.covariance.trace()


def test_features_of_different_size_are_refused():
    with pytest.raises(BadInput, match="size 6 and 7"):
        frechet_distance(random_moments(1), random_moments(1, size=7))


def test_sure_and_balanced_predictions_score_the_number_of_classes():
    sure = torch.eye(5)[torch.arange(2000) % 5]
    mean, deviation = inception_score(sure, splits=1)
    assert mean == pytest.approx(5.0) and deviation == 0.0


def test_uniform_predictions_score_one():
    mean, deviation = inception_score(torch.full((1000, 10), 0.1))
    assert mean == pytest.approx(1.0) and deviation == pytest.approx(0.0)


@pytest.mark.parametrize("order", ["sorted", "in turn"])
def test_the_order_of_the_classes_does_not_empty_the_splits(order):
    labels = torch.arange(2000) % 10
    labels = labels.sort().values if order == "sorted" else labels
    mean, deviation = inception_score(torch.eye(10)[labels])
    assert mean > 9 and 0 < deviation < 0.5


def test_few_images_are_not_split():
    sure = torch.eye(10)[torch.arange(100) % 10]
    assert inception_score(sure) == inception_score(sure, splits=1)
