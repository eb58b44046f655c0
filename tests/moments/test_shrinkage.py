"""Shrinkage: noise alone goes, signal stays, and loud rows are believed more than quiet ones."""

import pytest
import torch

from dpray.moments.shrinkage import kept_matrices, kept_vectors


def symmetric_noise(slots, size, seed=0):
    """Of deviation one on the diagonal and less by the root of two beside it."""
    rng = torch.Generator().manual_seed(seed)
    entries = torch.randn(slots, size, size, generator=rng).double()
    off = entries.triu(1) / 2**0.5
    return off + off.mT + torch.diag_embed(entries.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize(("size", "left"), [(20, 0.25), (60, 0.25)])
def test_matrices_of_noise_alone_are_nearly_gone(size, left):
    noise = symmetric_noise(40, size)
    kept = kept_matrices(noise, torch.ones(40).double())
    assert kept.norm() < left * noise.norm()


def test_matrices_without_noise_stay_as_they_are():
    signal = symmetric_noise(5, 8)
    assert torch.allclose(kept_matrices(signal, torch.zeros(5).double()), signal)


def test_shrunk_matrices_are_nearer_to_the_truth_than_noisy_ones_and_than_nothing():
    loud = torch.tensor([3.0, 2.0, *[0.05] * 18]).double()
    truth = symmetric_noise(30, 20, seed=1) * torch.outer(loud, loud).sqrt()
    noisy = truth + symmetric_noise(30, 20, seed=2)
    away = (kept_matrices(noisy, torch.ones(30).double()) - truth).norm()
    assert away < 0.6 * (noisy - truth).norm()
    assert away < 0.6 * truth.norm()


def test_vectors_keep_entries_that_differ_by_more_than_noise():
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(50, 2, generator=rng).double()
    signal = torch.tensor([10.0, 0.0]).double() * torch.randn(50, 1, generator=rng).double()
    kept = kept_vectors(signal + noise, torch.ones(50).double())
    assert (kept[:, 0] - signal[:, 0]).std() < 1.2
    assert kept[:, 1].std() < 0.4
