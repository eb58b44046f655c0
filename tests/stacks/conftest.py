"""Tiny private records in a few subsets of different sizes, and settings that train in no time."""

import pytest
import torch

from dpray.data.records import Images
from dpray.stacks.recipes import EncoderSettings, mlp_recipe
from dpray.stacks.subsets import Subsets

SIZES = (3, 5, 1, 0, 4, 9)  # of the subsets 0 to 5; nobody is in 3
SHAPE = (1, 6, 5)


@pytest.fixture
def images():
    rng = torch.Generator().manual_seed(0)
    count = sum(SIZES)
    return Images(
        torch.rand(count, *SHAPE, generator=rng),
        torch.randint(3, (count,), generator=rng),
        torch.randperm(1000, generator=rng)[:count],
    )


@pytest.fixture
def numbers():
    """The subset of every record, in no order."""
    held = torch.tensor([k for k, size in enumerate(SIZES) for _ in range(size)])
    return held[torch.randperm(len(held), generator=torch.Generator().manual_seed(1))]


@pytest.fixture
def subsets(images, numbers):
    return Subsets(images, numbers, len(SIZES))


@pytest.fixture
def settings():
    recipe = mlp_recipe(SHAPE, num_classes=3, latent=2, hidden=7, label_scale=2.0, grain=2)
    return EncoderSettings(recipe=recipe, steps=20, lr=1e-2, batch_size=6)
