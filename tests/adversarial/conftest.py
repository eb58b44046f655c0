"""Records, a critic and a generator of a few numbers each, and a duel of six steps."""

import copy

import pytest
import torch

from dpray.adversarial.duel import Duel, train_generator
from dpray.models.latent_models import LatentCritic, LatentDecoder
from dpray.privacy.queries import PoissonGradients

SIZE, CLASSES = 5, 3


@pytest.fixture
def units():
    return torch.randn(30, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels():
    return torch.arange(30) % CLASSES


@pytest.fixture
def critic():
    torch.manual_seed(0)
    return LatentCritic(SIZE, CLASSES, hidden=6)


@pytest.fixture
def generator():
    torch.manual_seed(1)
    return LatentDecoder(SIZE, CLASSES, noise=2, hidden=4)


@pytest.fixture
def trained(generator, critic, units, labels):
    """Trains copies of the two, pays for it, and gives back the averaged generator."""

    def train(run, *, labels=labels, generator=generator, critic=critic, seen=None, **changes):
        settings = {
            "loss": "bce",
            "critic_steps": 2,
            "num_fakes": 8,
            "num_classes": CLASSES,
            "lr_critic": 1e-2,
            "lr_generator": 1e-2,
            "weight_clip": 0.05,
            "averaging": 0.9,
            "micro_batch": 64,
        }
        critic = copy.deepcopy(critic)
        query = PoissonGradients(
            name="duel",
            sample_rate=0.5,
            steps=6,
            clip_norm=0.5,
            noise_multiplier=2.0,
            expected_batch_size=15.0,
        )
        return train_generator(
            copy.deepcopy(generator),
            critic,
            torch.nn.Module(),
            lambda done, average: seen(done, critic) if seen else None,
            lambda rows: critic(units[rows], labels[rows]),
            torch.arange(len(units)),
            Duel(**{**settings, **changes}),
            run,
            run.ledger.pay(query),
            "duel",
        )

    return train
