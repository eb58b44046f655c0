"""Grain: what images have beside the directions of the Gaussians is drawn as records have it."""

import dataclasses

import torch

from dpray.data.records import Images
from dpray.methods.dp_moments import DPMoments
from dpray.models.mixtures import GaussianMixture
from dpray.moments.subspace import _grain


def test_grain_and_directions_together_are_the_whole_second_moment():
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(200, 12, generator=rng).double()
    second = points.T @ points
    basis = torch.linalg.eigh(second)[1][:, -3:]
    grain = _grain(second, basis, 12)
    along = basis @ (basis.T @ second @ basis) @ basis.T
    assert torch.allclose(along + grain @ grain.T, second, atol=1e-8)
    assert (basis.T @ grain).abs().max() < 1e-6


def test_fewer_grains_are_the_loudest():
    second = torch.diag(torch.arange(1.0, 9.0).double())
    grain = _grain(second, torch.eye(8).double()[:, :1], 2)
    assert torch.allclose((grain @ grain.T).diagonal()[-2:], torch.tensor([7.0, 8.0]).double())
    assert grain.shape == (8, 2)


def test_draws_have_the_grain_of_the_records(tiny_data, make_run):
    """Stripes of which one direction tells nearly all, and noise in all pixels besides."""
    rng = torch.Generator().manual_seed(1)
    labels = torch.arange(600) % 3
    pixels = 0.5 + 0.05 * torch.randn(600, 1, 16, 16, generator=rng)
    pixels[:, :, 4:8] += 0.2 * torch.randn(600, 1, 1, 1, generator=rng)
    records = Images(pixels.clamp(0, 1), labels, torch.arange(600))
    data = dataclasses.replace(tiny_data, private=records, num_records=600)
    method = DPMoments(dimensions=2, components=1, radius=1.0, warp=0.0)
    release = method.fit(data, make_run(noise_multiplier=1e-6))
    quiet = release.sample(labels, rng)[:, :, 12:].std(0).mean()
    assert 0.03 < float(quiet) < 0.06
    release.module.grain.zero_()
    assert float(release.sample(labels, rng)[:, :, 12:].std(0).mean()) < 0.02


def test_without_grains_nothing_is_added():
    mixture = GaussianMixture((1, 4, 4), 2, 3, 1)
    assert torch.equal(mixture.beside(5, torch.Generator()), torch.zeros(5, 16))


def test_a_release_without_grain_holds_none():
    """As those do that were registered before there was any."""
    assert "grain" not in GaussianMixture((1, 4, 4), 2, 3, 1).state_dict()
    assert "grain" in GaussianMixture((1, 4, 4), 2, 3, 1, grains=5).state_dict()
