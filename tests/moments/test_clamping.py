"""Gaussians of images with ends: their cut draws must have the moments that were asked for."""

import torch

from dpray.models.mixtures import GaussianMixture
from dpray.moments.clamping import allow_for_clamping


def at_the_edge(view="pixels"):
    """Gaussians around nearly black images, half of whose draws would be below black."""
    mixture = GaussianMixture((1, 6, 6), 2, 8, 2, view=view)
    rng = torch.Generator().manual_seed(0)
    mixture.basis.copy_(torch.linalg.qr(torch.randn(len(mixture.basis), 8, generator=rng))[0])
    mixture.means.copy_(0.2 * torch.rand(2, 2, 8, generator=rng))
    mixture.factors.copy_(0.3 * torch.eye(8).expand(2, 2, 8, 8))
    return mixture


def moments_of_draws(mixture, label, component, count=20_000):
    rng = torch.Generator().manual_seed(9)
    noise = torch.randn(count, 8, generator=rng)
    points = mixture.means[label, component] + noise @ mixture.factors[label, component].T
    cut = mixture.cut_off(points) @ mixture.basis
    return cut.mean(0), torch.cov(cut.T)


def test_cut_draws_come_closer_to_the_moments_that_were_released():
    before, after = at_the_edge(), at_the_edge()
    allow_for_clamping(after, torch.Generator().manual_seed(1))
    for label in range(2):
        wanted_mean = before.means[label, 0]
        wanted = before.factors[label, 0] @ before.factors[label, 0].T
        for place, wish in enumerate((wanted_mean, wanted)):
            old, new = (moments_of_draws(one, label, 0)[place] for one in (before, after))
            assert (new - wish).norm() < 0.8 * (old - wish).norm()


def test_gaussians_whose_draws_are_never_cut_stay():
    mixture = at_the_edge()
    mixture.basis.copy_(torch.eye(36, 8))
    mixture.means.fill_(0.5)
    mixture.factors.mul_(0.1)
    before = {name: value.clone() for name, value in mixture.state_dict().items()}
    allow_for_clamping(mixture, torch.Generator().manual_seed(1))
    assert torch.allclose(mixture.means, before["means"], atol=1e-5)
    covariances = mixture.factors @ mixture.factors.mT
    assert torch.allclose(covariances, before["factors"] @ before["factors"].mT, atol=1e-5)


def test_how_images_lie_is_not_cut_off():
    mixture = at_the_edge("upright")
    points = 50 * torch.ones(3, 8)
    vectors = mixture.cut_off(points)
    assert vectors[:, :-5].min() >= 0
    assert vectors[:, :-5].max() <= 1
    assert torch.allclose(vectors[:, -5:], (points @ mixture.basis.T)[:, -5:])
