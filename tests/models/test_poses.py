"""Poses: an upright image and how it lay make it again; what lies otherwise looks the same."""

import pytest
import torch
import torch.nn.functional as F

from dpray.models.poses import NUMBERS, drawn_in_pose, upright_with_poses

SHAPE = (1, 28, 28)


def letter(count=1):
    """A soft L, in the middle."""
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 7:21, 10:13] = 1.0
    image[0, 0, 18:21, 10:18] = 1.0
    return F.avg_pool2d(image, 3, 1, 1).expand(count, 1, 28, 28)


def moved(images, rows):
    theta = torch.tensor(rows).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def test_an_image_comes_back_from_upright():
    image = moved(letter(), [[1.0, 0.3, 0.1], [0.0, 1.0, -0.1]])
    back = drawn_in_pose(upright_with_poses(image), SHAPE)
    assert (back - image).abs().mean() < 0.02


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 0.0, 0.2], [0.0, 1.0, -0.1]],
        [[1.0, 0.4, 0.0], [0.0, 1.0, 0.0]],
        [[1.2, 0.0, 0.0], [0.0, 0.9, 0.0]],
    ],
    ids=["shifted", "slanted", "of another size"],
)
def test_the_same_letter_looks_the_same_however_it_lies(rows):
    image, other = letter(), moved(letter(), rows)
    upright, lying = upright_with_poses(image), upright_with_poses(other)
    pixels = slice(0, -NUMBERS)
    assert (upright[:, pixels] - lying[:, pixels]).norm() < 0.6 * (image - other).norm()
    assert (upright[:, -NUMBERS:] - lying[:, -NUMBERS:]).norm() > 0.1


@pytest.mark.parametrize("image", [torch.zeros(1, *SHAPE), torch.ones(1, *SHAPE)])
def test_images_without_a_shape_have_a_pose_too(image):
    vectors = upright_with_poses(image)
    assert vectors.isfinite().all()
    assert drawn_in_pose(vectors, SHAPE).isfinite().all()


def test_a_pose_depends_on_its_own_image_alone():
    images = torch.rand(5, 3, 12, 10, generator=torch.Generator().manual_seed(0))
    together = upright_with_poses(images)
    alone = torch.cat([upright_with_poses(image.unsqueeze(0)) for image in images])
    assert together.shape == (5, 3 * 120 + NUMBERS)
    assert torch.allclose(together, alone, atol=1e-5)


def test_poses_that_noise_made_impossible_give_images():
    vectors = torch.zeros(4, 784 + NUMBERS)
    vectors[:, -NUMBERS:] = torch.tensor([[1e3], [-1e3], [0.0], [30.0]])
    images = drawn_in_pose(vectors, SHAPE)
    assert images.shape == (4, *SHAPE)
    assert images.isfinite().all()


def test_no_image_at_all_has_no_pose():
    assert upright_with_poses(torch.zeros(0, *SHAPE)).shape == (0, 784 + NUMBERS)
