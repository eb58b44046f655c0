"""Public images of two kinds, and a cache of public models for each test."""

import pytest
import torch

from dpray.data.records import Images
from dpray.inversion.recipes import PublicRecipe


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def public() -> Images:
    """Bright squares somewhere on 8x8 pixels."""
    rng = torch.Generator().manual_seed(0)
    pixels = 0.1 * torch.rand(80, 1, 8, 8, generator=rng)
    for image, (row, column) in zip(
        pixels, torch.randint(0, 5, (80, 2), generator=rng).tolist(), strict=True
    ):
        image[0, row : row + 3, column : column + 3] += 0.8
    return Images(pixels, torch.zeros(80, dtype=torch.long), torch.arange(80))


@pytest.fixture
def tiny() -> PublicRecipe:
    return PublicRecipe(kind="autoencoder", latent=6, hidden=16, steps=60, batch_size=32)
