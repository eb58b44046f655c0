"""Augmentation: one of shift, scale and rotation, filled with the mean of the batch."""

import torch

from dpray.evaluation.augmentation import augment


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_generator_gives_the_same_images_and_another_does_not():
    images = torch.rand(8, 3, 16, 16, generator=generator())
    assert torch.equal(augment(images, generator(1)), augment(images, generator(1)))
    assert not torch.equal(augment(images, generator(1)), augment(images, generator(2)))


def test_shape_and_range_stay_and_the_input_is_left_alone():
    images = torch.rand(50, 2, 12, 20, generator=generator())
    before = images.clone()
    changed = augment(images, generator())
    assert changed.shape == images.shape and torch.equal(images, before)
    assert changed.min() >= -1e-6 and changed.max() <= 1 + 1e-6


def test_what_comes_in_from_outside_is_the_mean_of_the_batch():
    images = torch.full((60, 2, 16, 16), 0.25)
    images[:, 1] = 0.75
    torch.testing.assert_close(augment(images, generator()), images)


def test_about_a_third_of_the_images_are_moved_by_whole_pixels():
    """A dot stays one dot of full height only where it is shifted; scaling smears it."""
    images = torch.zeros(600, 1, 28, 28)
    images[:, :, 9, 20] = 1
    images[:, :, 20, 9] = 1
    changed = augment(images, generator())
    whole = ((changed > 0.99).sum((1, 2, 3)) == 2).sum().item()
    assert 150 < whole < 250


def test_a_rotation_keeps_distances_in_images_that_are_not_square():
    """Two spots 20 pixels apart, level, in a wide image: turned, they are still 20 apart."""
    images = torch.zeros(300, 1, 28, 56)
    images[:, :, 13:15, 17:19] = 1
    images[:, :, 13:15, 37:39] = 1
    apart = []
    for image in augment(images, generator())[:, 0]:
        rows, columns = (image > 0.3).nonzero().double().T
        left = columns < 28
        if left.any() and (~left).any():
            drop = (rows[left].mean() - rows[~left].mean()).item()
            along = (columns[left].mean() - columns[~left].mean()).item()
            if abs(drop) > 4:  # only a rotation takes them off the level
                apart.append((drop**2 + along**2) ** 0.5)
    assert len(apart) > 40
    assert all(abs(distance - 20) < 1 for distance in apart)
