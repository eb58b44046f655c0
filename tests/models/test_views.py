"""Views: every one has vectors of the size it says, and the image comes back from them."""

import pytest
import torch
import torch.nn.functional as F

from dpray.errors import BadInput
from dpray.models.distances import nearness
from dpray.models.views import VIEWS, view_as


def strokes(channels: int = 1) -> torch.Tensor:
    image = torch.zeros(2, channels, 28, 28)
    image[0, :, 7:21, 10:13] = 1.0
    image[0, :, 18:21, 10:18] = 1.0
    image[1, :, 6:22, 15:18] = 1.0
    return F.avg_pool2d(image, 3, 1, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_the_image_comes_back_from_its_view(name, channels):
    images = strokes(channels)
    view = view_as(name, (channels, 28, 28))
    vectors = view.vectors(images)
    assert vectors.shape == (2, view.size)
    assert (view.images(view.cut_off(vectors)) - images).abs().mean() < 0.03


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_no_image_is_cut_off_to_one(name):
    view = view_as(name, (1, 12, 10))
    vectors = 5 * torch.randn(20, view.size, generator=torch.Generator().manual_seed(0))
    cut = view.cut_off(vectors)
    assert torch.equal(cut[:, view.pixels :], vectors[:, view.pixels :])
    images = view.images(cut)
    assert images.shape == (20, 1, 12, 10)
    assert bool((images >= 0).all() and (images <= 1).all())


@pytest.mark.parametrize("name", VIEWS)
def test_no_record_has_no_vector(name):
    view = view_as(name, (1, 12, 10))
    assert view.vectors(torch.zeros(0, 1, 12, 10)).shape == (0, view.size)


def test_strokes_of_another_place_are_nearer_as_ink():
    """Two bars that touch each other: as pixels they have nothing in common."""
    bars = torch.zeros(2, 1, 28, 28)
    bars[0, :, 4:24, 10:12] = 1.0
    bars[1, :, 4:24, 12:14] = 1.0

    def apart(values: torch.Tensor) -> float:
        return float((values[0] - values[1]).norm() / values.norm())

    assert apart(nearness(bars)) < 0.75 * apart(bars)


def test_a_view_that_does_not_exist_is_refused_with_the_choices():
    with pytest.raises(BadInput, match="ink, pixels, upright"):
        view_as("sideways", (1, 8, 8))
