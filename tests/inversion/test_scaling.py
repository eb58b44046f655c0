"""The scale of latents comes from public records, and there is a way back."""

import pytest
import torch

from dpray.errors import BadInput
from dpray.inversion.extraction import Extraction
from dpray.inversion.public_models import public_model
from dpray.inversion.reconstructions import public_reconstructions
from dpray.inversion.scaling import LatentScale, latent_scale, public_scale


@pytest.fixture
def latents():
    rng = torch.Generator().manual_seed(0)
    mixed = torch.randn(500, 5, generator=rng) @ torch.randn(5, 5, generator=rng)
    return 3 * mixed + torch.arange(5.0)


@pytest.mark.parametrize("scale", ["diagonal", "whitened"])
def test_the_way_there_and_back_is_none(latents, scale):
    fitted = latent_scale(latents, scale)
    assert torch.allclose(fitted.from_unit(fitted.to_unit(latents)), latents, atol=1e-4)
    stored = LatentScale(5)
    stored.load_state_dict(fitted.state_dict())
    assert torch.equal(stored.to_unit(latents), fitted.to_unit(latents))


def test_units_have_mean_zero_and_variance_one(latents):
    diagonal = latent_scale(latents, "diagonal", shrinkage=0).to_unit(latents)
    whitened = latent_scale(latents, "whitened", shrinkage=0).to_unit(latents)
    for units in (diagonal, whitened):
        assert torch.allclose(units.mean(0), torch.zeros(5), atol=1e-4)
        assert torch.allclose(units.std(0), torch.ones(5), atol=1e-3)
    assert torch.allclose(whitened.T.cov(), torch.eye(5), atol=1e-3)
    assert not torch.allclose(diagonal.T.cov(), torch.eye(5), atol=0.1)


@pytest.mark.parametrize("scale", ["diagonal", "whitened"])
def test_a_latent_that_public_records_do_not_use_is_not_blown_up(latents, scale):
    latents[:, 2] = 0
    for shrinkage in (0.0, 0.1):
        units = latent_scale(latents, scale, shrinkage).to_unit(latents + 1e-3)
        assert units.isfinite().all() and units.abs().max() < 10


def test_a_scale_that_does_not_exist_is_refused(latents):
    with pytest.raises(BadInput, match="whitened"):
        latent_scale(latents, "none")
    with pytest.raises(BadInput, match="at least 2"):
        latent_scale(latents[:1])


def test_the_public_scale_fits_what_the_extraction_finds(tiny, public):
    model = public_model(tiny, public, say=lambda line: None)
    extraction = Extraction(kind="encoder")
    scale = public_scale(model, extraction, public, shrinkage=0)
    assert torch.allclose(scale.mean, model.encode(public.pixels).mean(0), atol=1e-4)
    some = public_scale(model, extraction, public, most=20)
    assert not torch.allclose(some.mean, scale.mean, atol=1e-4)


def test_reconstructions_are_made_for_each_number_of_steps(tiny, public):
    model = public_model(tiny, public, say=lambda line: None)
    made = public_reconstructions(model, Extraction(), public.pixels[:4], [0, 50])
    assert [one.steps for one in made] == [0, 50]
    assert made[0].pixels.shape == (4, 1, 8, 8)
    assert made[1].error < made[0].error
