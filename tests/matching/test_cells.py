"""Cells of a class: shares of images that add up, and starts that lie in their cell."""

import torch

from dpray import models
from dpray.matching.cells import cells_of_images, starts
from dpray.models.mixtures import GaussianMixture
from dpray.moments.subspace import nearest_cells


def test_cells_share_the_images_of_their_class_as_they_share_its_records():
    counts = torch.tensor([[100.0, 300.0, 600.0], [5.0, 5.0, 5.0]])
    cells = cells_of_images(counts, 10)
    assert torch.bincount(cells, minlength=6).tolist() == [1, 3, 6, 4, 3, 3]


def test_a_cell_with_hardly_any_record_may_have_no_image():
    assert torch.bincount(cells_of_images(torch.tensor([[1.0, 999.0]]), 5), minlength=2)[0] == 0


def line() -> tuple[GaussianMixture, torch.Tensor]:
    """One class along the first of four pixels, around the middle of its range."""
    made = models.build(
        "gaussian-mixture", shape=[1, 2, 2], num_classes=1, dimensions=1, components=1
    )
    assert isinstance(made, GaussianMixture)
    made.basis.copy_(torch.tensor([[1.0], [0.0], [0.0], [0.0]]))
    made.means.fill_(0.5)
    made.factors.fill_(0.1)
    return made, torch.tensor([[[0.4], [0.6], [50.0]]], dtype=torch.float64)


def test_images_start_as_draws_that_lie_in_their_cell():
    gaussian, centres = line()
    cells = torch.tensor([0, 0, 0, 1, 1])
    images = starts(gaussian, centres, cells, torch.Generator().manual_seed(0))
    points = images.flatten(1)[:, :1].double()
    assert torch.equal(nearest_cells(points, torch.zeros(5, dtype=torch.long), centres), cells)
    assert len(points.unique()) > 2  # draws, and not the centres


def test_a_cell_that_no_draw_falls_into_starts_at_its_centre():
    gaussian, centres = line()
    images = starts(gaussian, centres, torch.tensor([0, 2]), torch.Generator().manual_seed(0))
    assert images[1].flatten()[0] == 1.0  # its centre, cut to the range of an image
