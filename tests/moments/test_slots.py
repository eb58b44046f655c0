"""Moments of cells and classes: what noise explains is taken back, what it does not stays."""

import torch

from dpray.moments.slots import Moments, factors_of, positive


def test_cells_go_back_to_their_class_as_far_as_noise_is_to_blame():
    """Cells that differ by noise alone become one; what noise cannot explain stays."""
    rng = torch.Generator().manual_seed(0)
    size, cells = 12, 4

    def shrunk(difference, noise):
        entries = noise * torch.randn(cells, size, size, generator=rng).double() / 2**0.5
        symmetric = entries.triu() + entries.triu(1).mT
        own = difference * torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(-1, 1, 1).double()
        each = torch.full((cells,), noise).double()
        found = Moments(
            counts=torch.full((cells,), 100.0).double(),
            centres=torch.zeros(cells, size).double(),
            shifts=noise * torch.randn(cells, size, generator=rng).double(),
            covariances=torch.eye(size).double() * (2 + own) + symmetric,
            shift_noise=each,
            covariance_noise=each,
        ).shrunk(cells)
        return found.covariances.diagonal(dim1=1, dim2=2).mean(1), found.shifts.norm(dim=1)

    alone, shifts = shrunk(0.0, 0.1)
    assert alone.std() < 0.02
    assert shifts.max() < 0.1 * size**0.5  # noise is that long
    apart, _ = shrunk(1.0, 0.1)
    assert torch.allclose(apart, torch.tensor([3.0, 1.0, 3.0, 1.0]).double(), atol=0.1)


def test_classes_go_back_to_what_all_of_them_have_in_common():
    rng = torch.Generator().manual_seed(1)
    entries = 0.1 * torch.randn(10, 12, 12, generator=rng).double() / 2**0.5
    found = Moments(
        counts=torch.full((10,), 100.0).double(),
        centres=torch.zeros(10, 12).double(),
        shifts=torch.zeros(10, 12).double(),
        covariances=2 * torch.eye(12).double() + entries.triu() + entries.triu(1).mT,
        shift_noise=torch.full((10,), 0.1).double(),
        covariance_noise=torch.full((10,), 0.1).double(),
    ).shrunk(1)
    assert (found.covariances - found.covariances.mean(0)).norm() < 0.3 * entries.norm()


def test_what_is_negative_is_no_variance():
    matrix = torch.diag(torch.tensor([2.0, -1.0, 0.5]).double())
    expected = torch.diag(torch.tensor([2.0, 0.0, 0.5]).double())
    factor = factors_of(matrix)
    assert torch.allclose(positive(matrix), expected)
    assert torch.allclose(factor @ factor.T, expected)
