"""Latents of a record are a function of that record: nothing of its neighbours gets in."""

import pytest
import torch

from dpray import models
from dpray.errors import BadInput
from dpray.inversion.extraction import (
    Extraction,
    extract,
    latent_extractor,
    public_starts,
    record_errors,
)

SHAPE = (1, 8, 8)
NETWORKS = ["fc-autoencoder", "conv-autoencoder", "fc-latent-generator", "conv-latent-generator"]


def model(name="fc-autoencoder", latent=6):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return models.build(name, shape=SHAPE, latent=latent).eval().requires_grad_(False)


def settings():
    yield Extraction(kind="gradient", steps=20)
    yield Extraction(kind="gradient", steps=20, start="zero")
    yield Extraction(kind="gradient", steps=20, starts=3)
    yield Extraction(kind="projected", steps=20)
    yield Extraction(kind="projected", steps=20, starts=2)


@pytest.mark.parametrize("extraction", settings(), ids=lambda e: f"{e.kind}-{e.start}-{e.starts}")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_record_has_the_same_latents_alone_and_among_others(name, extraction, public):
    module, pixels = model(name), public.pixels[:6]
    together = extract(module, pixels, extraction)
    alone = torch.cat([extract(module, one[None], extraction) for one in pixels])
    assert torch.allclose(together, alone, atol=1e-4)
    others = torch.cat([pixels[:1], 1 - pixels[1:]])
    assert torch.allclose(extract(module, others, extraction)[0], together[0], atol=1e-4)


def test_encoder_starts_and_passes_are_record_local_too(public):
    module, pixels = model(), public.pixels[:6]
    for extraction in (Extraction(kind="encoder"), Extraction(start="encoder", steps=10)):
        together = extract(module, pixels, extraction)
        assert torch.allclose(together[2:3], extract(module, pixels[2:3], extraction), atol=1e-4)


def test_projected_latents_stay_in_the_ball_of_their_start(public):
    extraction = Extraction(kind="projected", steps=30, lr=1.0)
    radius = public_starts(extraction, 6).norm()
    inside = extract(model("fc-latent-generator"), public.pixels, extraction).norm(dim=1)
    free = Extraction(kind="gradient", steps=30, lr=1.0)
    outside = extract(model("fc-latent-generator"), public.pixels, free).norm(dim=1)
    assert (inside <= radius * 1.0001).all()
    assert (outside > radius).any()


def test_more_steps_show_records_better(public):
    module, errors = model(latent=12), []
    for steps in (0, 10, 100):
        latents = extract(module, public.pixels, Extraction(steps=steps))
        errors.append(record_errors(module, latents, public.pixels).mean().item())
    assert errors[0] > errors[1] > errors[2]


def test_each_record_keeps_its_own_best_start(public):
    module = model("fc-latent-generator")
    three = Extraction(kind="projected", steps=10, starts=3)
    best = record_errors(module, extract(module, public.pixels, three), public.pixels)
    one = Extraction(kind="projected", steps=10)
    single = record_errors(module, extract(module, public.pixels, one), public.pixels)
    assert (best <= single + 1e-6).all() and (best < single - 1e-6).any()


def test_the_extractor_needs_no_gradients_around_it_and_leaves_the_model_alone(public):
    module = model("fc-latent-generator").train()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        latents = latent_extractor(module, Extraction(steps=5))(public.pixels)
        assert torch.equal(extract(module, public.pixels, Extraction(steps=5)), latents)
    assert not latents.requires_grad and module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, weights[name])


def test_settings_that_contradict_each_other_are_refused(public):
    with pytest.raises(BadInput, match="ball"):
        Extraction(kind="projected", start="zero")
    with pytest.raises(BadInput, match="gradient"):
        Extraction(kind="ascent")
    with pytest.raises(BadInput, match="only an autoencoder"):
        extract(model("fc-latent-generator"), public.pixels, Extraction(kind="encoder"))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 9, 14)])
@pytest.mark.parametrize("name", NETWORKS)
def test_public_models_take_latents_to_images_of_any_shape(name, shape):
    module = models.build(name, shape=list(shape), latent=7).eval()
    made = module.decode(torch.randn(2, 7))
    assert made.shape == (2, *shape) and made.min() >= 0 and made.max() <= 1
    if hasattr(module, "encode"):
        assert module.encode(made).shape == (2, 7)
