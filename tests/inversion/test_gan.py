"""Wasserstein GANs on public images, without what made earlier ones collapse."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpray.inversion.gan import train_gan


@pytest.fixture
def recipe(tiny):
    return replace(tiny, kind="gan", steps=8, batch_size=16)


@pytest.mark.parametrize("network", ["fc", "conv"])
def test_a_critic_ends_in_a_linear_layer_and_starts_from_weights_that_differ(recipe, network):
    critic = replace(recipe, network=network).critic((1, 8, 8))
    layers = [layer for layer in critic.modules() if not list(layer.children())]
    assert isinstance(layers[-1], nn.Linear)
    assert not any(isinstance(layer, nn.Sigmoid | nn.BatchNorm1d) for layer in layers)
    for weight in (p for p in critic.parameters() if p.dim() > 1):
        assert weight.std() > 0.01
    scores = critic(10 * torch.randn(50, 1, 8, 8))
    assert scores.shape == (50,) and scores.min() < 0 < scores.max()


@pytest.mark.parametrize("network", ["fc", "conv"])
def test_the_weights_of_a_wgan_critic_end_within_the_clip(recipe, public, network):
    clipped = replace(recipe, loss="wgan", weight_clip=0.02, network=network)
    _, critic = train_gan(clipped, public.pixels)
    _, free = train_gan(replace(clipped, loss="wgan-gp"), public.pixels)

    def largest(module):
        return max(p.abs().max().item() for p in module.parameters() if p.dim() > 1)

    assert largest(critic) <= 0.02 < largest(free)


def test_the_penalty_holds_the_slope_of_the_critic_near_one(recipe, public):
    steep = replace(recipe, steps=150, critic_steps=4)
    generator, critic = train_gan(steep, public.pixels)
    fake = generator(torch.randn(80, 6)).detach()
    between = (0.5 * public.pixels + 0.5 * fake).requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between)
    assert 0.7 < slopes.flatten(1).norm(dim=1).mean() < 1.3


def test_training_brings_generated_images_closer_to_the_public_ones(recipe, public):
    latents = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))

    def distance(generator):
        made = generator.decode(latents).detach().flatten(1)
        return torch.cdist(made, public.pixels.flatten(1)).min(1).values.mean()

    before, _ = train_gan(replace(recipe, steps=0), public.pixels)
    after, _ = train_gan(replace(recipe, steps=400, lr=5e-3), public.pixels)
    assert distance(after) < 0.6 * distance(before)
    assert after.decode(latents).flatten(1).std(0).mean() > 0.05  # and not all of one image


def test_a_generated_image_does_not_depend_on_those_beside_it(recipe, public):
    generator, _ = train_gan(recipe, public.pixels)
    latents = torch.randn(7, 6)
    assert torch.allclose(generator.decode(latents)[:1], generator.decode(latents[:1]), atol=1e-6)
