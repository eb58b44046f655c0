"""Moments: with little noise they are those of the data; with a mixture, those of its cells."""

import dataclasses
import math

import pytest
import torch

from dpray import moments
from dpray.errors import BadInput
from dpray.methods.dp_moments import DPMoments

SETTINGS = {"dimensions": 6, "radius": 1.0}


def test_with_little_noise_the_means_are_those_of_the_classes(tiny_data, make_run):
    release = DPMoments(**SETTINGS, components=1).fit(tiny_data, make_run(noise_multiplier=1e-6))
    module = release.module
    drawn = (module.means[:, 0] @ module.basis.T).reshape(3, 1, 16, 16)
    for label in range(3):
        true = tiny_data.private.pixels[tiny_data.private.labels == label].mean(0)
        assert torch.allclose(drawn[label], true, atol=0.1)


def test_with_little_noise_the_covariances_are_those_of_the_classes(
    tiny_data, make_run, monkeypatch
):
    monkeypatch.setattr(moments, "_LONGEST", 10.0)  # no record is cut
    monkeypatch.setattr(moments, "_WITHIN", 1.0)
    release = DPMoments(**SETTINGS, components=1).fit(tiny_data, make_run(noise_multiplier=1e-6))
    module, private = release.module, tiny_data.private
    for label in range(3):
        points = private.pixels[private.labels == label].flatten(1) @ module.basis
        covariance = module.factors[label, 0] @ module.factors[label, 0].T
        expected = torch.cov(points.T, correction=0)
        assert (covariance - expected).norm() < 0.05 * expected.norm()


def test_noise_decides_how_many_directions_and_gaussians_there_are(tiny_data, make_run):
    quiet, loud = (
        DPMoments().fit(tiny_data, make_run(noise_multiplier=noise)).arguments
        for noise in (1e-4, 1.0)
    )
    assert (quiet["dimensions"], quiet["components"]) == (100, 4)
    assert loud["dimensions"] < 20
    assert loud["components"] == 1


@pytest.mark.parametrize("dimensions", [6, 200, 256])
def test_directions_are_orthogonal_also_where_noise_is_all_there_is(
    dimensions, tiny_data, make_run
):
    method = DPMoments(dimensions=dimensions, components=1)
    basis = method.fit(tiny_data, make_run(noise_multiplier=50.0)).module.basis
    assert torch.allclose(basis.T @ basis, torch.eye(dimensions), atol=1e-4)


def test_cells_go_back_to_their_class_as_far_as_noise_is_to_blame():
    """Cells that differ by noise alone become one; what noise cannot explain stays."""
    rng = torch.Generator().manual_seed(0)
    size, cells = 12, 4

    def shrunk(difference, noise):
        entries = noise * torch.randn(cells, size, size, generator=rng).double() / 2**0.5
        symmetric = entries.triu() + entries.triu(1).mT
        own = difference * torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(-1, 1, 1).double()
        each = torch.full((cells,), noise).double()
        found = moments.Moments(
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


def test_every_part_is_paid_before_the_first_is_read(tiny_data, make_run, monkeypatch):
    run = make_run(epsilon=1.0)
    paid_when_read = []
    honest = run.once

    def watch(name, release):
        paid_when_read.append(len(run.ledger.entries))
        return honest(name, release)

    monkeypatch.setattr(run, "once", watch)
    DPMoments(**SETTINGS, components=3).fit(tiny_data, run)
    assert paid_when_read == [4, 4, 4, 4]


def test_the_parts_share_the_budget_as_one_gaussian(tiny_data, make_run):
    run = make_run(epsilon=1.0)
    DPMoments(**SETTINGS, components=2).fit(tiny_data, run)
    shares = [entry.event.noise_multiplier**-2 for entry in run.ledger.entries]
    assert 1 / math.sqrt(sum(shares)) == pytest.approx(3.730632, abs=1e-4)


def test_the_moments_of_a_record_have_norm_one_at_most(tiny_data, make_run, monkeypatch):
    norms = []
    honest = moments.noisy_slot_sums

    def look(vectors, slots, **settings):
        norms.append(vectors(torch.arange(len(slots))).norm(dim=1))
        return honest(vectors, slots, **settings)

    monkeypatch.setattr(moments, "noisy_slot_sums", look)
    monkeypatch.setattr(moments, "_LONGEST", 1e-3)  # all records are cut, so all are as loud
    monkeypatch.setattr(moments, "_WITHIN", 1e-3)
    private = dataclasses.replace(tiny_data.private, pixels=100 * tiny_data.private.pixels)
    loud = dataclasses.replace(tiny_data, private=private)
    DPMoments(dimensions=6, components=2).fit(loud, make_run())
    _, classes, cells = norms  # the mean image is bounded where it is summed
    for found in (classes, cells):
        assert found.max() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("settings", [{"dimensions": 0}, {"components": 0}, {"radius": 2.0}])
def test_settings_that_make_no_sense_are_refused(settings, tiny_data):
    with pytest.raises(BadInput, match="must be"):
        DPMoments(**settings).check(tiny_data)
