"""The training that VAE methods share: what one record can move, and how loud the noise is."""

import math

import pytest
import torch

from dpray import vae_training
from dpray.models.autoencoders import Encoder, VariationalAutoencoder
from dpray.models.generators import ConditionalDecoder
from dpray.privacy.queries import gradients_at_noise
from dpray.vae_training import VaeTraining

TRAINING = VaeTraining(
    name="a vae", latent=2, kl_weight=1.0, lr=0.01, averaging=0.9, micro_batch=16
)
BATCH = 60


def autoencoder():
    torch.manual_seed(0)
    decoder = ConditionalDecoder((1, 16, 16), 3, 2, 8)
    return VariationalAutoencoder(Encoder(256, 3, 2, 8), decoder)


@pytest.fixture
def gradient(make_run, monkeypatch):
    """The sum that the first step releases, as one vector."""
    honest, found = vae_training.noisy_gradient, []

    def keep(model, *words, **settings):
        honest(model, *words, **settings)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]) * BATCH)

    monkeypatch.setattr(vae_training, "noisy_gradient", keep)

    def first(records, *, noise=0.0, clip_norm=1.0):
        run = make_run(noise_multiplier=1.0)
        with_noise = gradients_at_noise(
            "q", num_records=BATCH, batch_size=BATCH, steps=1, clip_norm=clip_norm
        )
        TRAINING.train(
            autoencoder(), autoencoder(), records, run, run.ledger.pay(with_noise(noise))
        )
        return found[-1].double()

    return first


def test_one_record_moves_a_step_by_no_more_than_the_clip_norm(tiny_data, gradient):
    records = tiny_data.private
    whole = gradient(records)
    for gone in (0, 7, 31):
        less = records[torch.arange(60) != gone]
        assert 0.9 < (whole - gradient(less)).norm() <= 1 + 1e-4
        # A bound that is not met here: then the same record moves the sum by far more.
        moved = (gradient(records, clip_norm=1e6) - gradient(less, clip_norm=1e6)).norm()
        assert moved > 5


@pytest.mark.parametrize(("claimed", "holds"), [(2.0, True), (1.0, False)])
def test_the_noise_of_a_step_is_the_multiplier_times_the_clip_norm(
    claimed, holds, tiny_data, gradient
):
    records = tiny_data.private
    noise = gradient(records, noise=2.0, clip_norm=0.5) - gradient(records, clip_norm=0.5)
    spread = float(noise.std()) / (claimed * 0.5)
    assert (abs(spread - 1) < 5 / math.sqrt(2 * len(noise))) == holds
