"""Warped sets: every draw is another image of its class, and stays one."""

import torch

from dpray.models.warped_sets import WarpedSet, warped


def bar_set(warp):
    """Two images: a vertical bar of class 0 and a horizontal one of class 1."""
    made = WarpedSet((1, 16, 16), 2, warp)
    made.images[0, :, :, 7:9] = 1.0
    made.images[1, :, 7:9] = 1.0
    made.labels[1] = 1
    return made


def test_draws_of_one_image_differ_and_lie_in_the_range_of_images():
    drawn = bar_set(1.0)(torch.zeros(10, dtype=torch.long), torch.Generator().manual_seed(0))
    assert len({image.numpy().tobytes() for image in drawn}) == 10
    assert 0 <= drawn.min() <= drawn.max() <= 1


def test_a_draw_still_shows_its_class():
    labels = torch.arange(40) % 2
    drawn = bar_set(1.0)(labels, torch.Generator().manual_seed(0))
    upright = drawn.sum(2).amax(2) > drawn.sum(3).amax(2)
    assert torch.equal(upright.flatten().long(), 1 - labels)


def test_the_same_seed_draws_the_same_images():
    made, labels = bar_set(1.0), torch.zeros(4, dtype=torch.long)
    first, again = (made(labels, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)


def test_a_stronger_warp_moves_images_further():
    images = torch.rand(50, 1, 16, 16)
    little, much = (
        (warped(images, most, torch.Generator().manual_seed(0)) - images).abs().mean()
        for most in (0.1, 1.0)
    )
    assert little < 0.7 * much


def test_no_warp_changes_nothing():
    images = torch.rand(5, 1, 16, 16)
    assert torch.allclose(warped(images, 0.0, torch.Generator()), images, atol=1e-5)
