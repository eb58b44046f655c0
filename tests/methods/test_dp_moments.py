"""Moments: with little noise they are those of the data; with a mixture, those of its cells."""

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


def test_with_little_noise_the_covariances_are_those_of_the_classes(tiny_data, make_run):
    release = DPMoments(**SETTINGS, components=1).fit(tiny_data, make_run(noise_multiplier=1e-6))
    module, private = release.module, tiny_data.private
    for label in range(3):
        points = private.pixels[private.labels == label].flatten(1) @ module.basis
        covariance = module.factors[label, 0] @ module.factors[label, 0].T
        expected = torch.cov(points.T, correction=0)
        assert (covariance - expected).norm() < 0.05 * expected.norm()


def test_a_tight_budget_gets_one_gaussian_and_a_wide_one_a_mixture(tiny_data, make_run):
    tight = DPMoments(**SETTINGS).fit(tiny_data, make_run(epsilon=1.0))
    wide = DPMoments(**SETTINGS).fit(tiny_data, make_run(epsilon=10.0))
    assert tight.arguments["components"] == 1
    assert wide.arguments["components"] == 4


def test_every_part_is_paid_before_the_first_is_read(tiny_data, make_run, monkeypatch):
    run = make_run(epsilon=1.0)
    paid_when_read = []
    honest = run.once

    def watch(name, release):
        paid_when_read.append(len(run.ledger.entries))
        return honest(name, release)

    monkeypatch.setattr(run, "once", watch)
    DPMoments(**SETTINGS, components=3).fit(tiny_data, run)
    assert paid_when_read == [3, 3, 3]


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
    DPMoments(dimensions=6, radius=0.1, components=2).fit(tiny_data, make_run())
    assert len(norms) == 2
    for found in norms:
        assert found.max() == pytest.approx(1.0, abs=1e-9)  # the radius is short: all are scaled


@pytest.mark.parametrize("settings", [{"dimensions": 0}, {"components": 0}, {"radius": 2.0}])
def test_settings_that_make_no_sense_are_refused(settings, tiny_data):
    with pytest.raises(BadInput, match="must be"):
        DPMoments(**settings).check(tiny_data)
