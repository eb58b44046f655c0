"""Distances from the edge of the ink: the known ones, and the ink again from them."""

import pytest
import torch

from dpray.models.distances import ink, nearness

OUTSIDE, INSIDE = 3.0, 2.0


def bar(width: int) -> torch.Tensor:
    """Upright, from column 8 on; its edges lie between pixels."""
    image = torch.zeros(1, 1, 20, 20)
    image[..., 8 : 8 + width] = 1.0
    return image


def distances(image):
    return OUTSIDE - nearness(image) * (OUTSIDE + INSIDE)


def test_distances_grow_by_one_a_pixel_until_they_are_cut():
    row = distances(bar(5))[0, 0, 10]
    assert row[5:8].tolist() == pytest.approx([3.0, 2.0, 1.0])
    assert row[8:13].tolist() == pytest.approx([-1.0, -2.0, -2.0, -2.0, -1.0])
    assert row[:5].tolist() == [3.0] * 5


def test_a_corner_is_as_far_as_the_straight_line_to_it():
    image = torch.zeros(1, 1, 20, 20)
    image[..., 10:, 10:] = 1.0
    assert float(distances(image)[0, 0, 9, 9]) == pytest.approx(2**0.5, abs=1e-6)
    assert float(distances(image)[0, 0, 8, 9]) == pytest.approx(5**0.5, abs=1e-6)


def test_a_grey_edge_moves_the_distances_by_a_part_of_a_pixel():
    sharp, soft = bar(4), bar(4)
    soft[..., 7] = 0.3
    row, other = distances(sharp)[0, 0, 10], distances(soft)[0, 0, 10]
    assert float(other[7]) == pytest.approx(0.2)
    assert 0 < float(row[6] - other[6]) < 1


def test_the_ink_comes_back_from_its_distances():
    rng = torch.Generator().manual_seed(0)
    coarse = (torch.rand(6, 3, 5, 5, generator=rng) > 0.5).float()
    image = torch.nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")
    assert (ink(nearness(image)) - image).abs().mean() < 0.02


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_an_image_without_an_edge_is_far_from_any(level):
    image = torch.full((2, 1, 9, 7), level)
    assert torch.equal(nearness(image), image)
    assert torch.equal(ink(nearness(image)), image)


def test_distances_depend_on_their_own_image_alone():
    images = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    together = nearness(images)
    assert torch.equal(together[251:252], nearness(images[251:252]))
    assert nearness(images[:0]).shape == (0, 1, 8, 8)
