"""Moments: with little noise they are those of the data; with a mixture, those of its cells."""

import dataclasses
import math

import pytest
import torch

from dpray import bending
from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.methods import dp_moments
from dpray.methods.dp_moments import DPMoments
from dpray.models.poses import NUMBERS
from dpray.models.views import VIEWS
from dpray.moments import mixture, subspace
from dpray.privacy import mechanisms

SETTINGS = {"dimensions": 6, "radius": 1.0, "warp": 0.0}


@pytest.fixture
def unclamped(monkeypatch):
    """For tests of the moments themselves: what cutting pixels off takes is not made up for."""
    monkeypatch.setattr(mixture, "allow_for_clamping", lambda *_: None)


def test_with_little_noise_the_means_are_those_of_the_classes(tiny_data, make_run, unclamped):
    release = DPMoments(**SETTINGS, components=1).fit(tiny_data, make_run(noise_multiplier=1e-6))
    module = release.module
    drawn = (module.means[:, 0] @ module.basis.T).reshape(3, 1, 16, 16)
    for label in range(3):
        true = tiny_data.private.pixels[tiny_data.private.labels == label].mean(0)
        assert torch.allclose(drawn[label], true, atol=0.1)


def test_with_little_noise_the_covariances_are_those_of_the_classes(
    tiny_data, make_run, monkeypatch, unclamped
):
    monkeypatch.setattr(subspace, "_LONGEST", 10.0)  # no record is cut
    monkeypatch.setattr(mixture, "_WITHIN", 1.0)
    release = DPMoments(**SETTINGS, components=1).fit(tiny_data, make_run(noise_multiplier=1e-6))
    module, private = release.module, tiny_data.private
    for label in range(3):
        points = private.pixels[private.labels == label].flatten(1) @ module.basis
        covariance = module.factors[label, 0] @ module.factors[label, 0].T
        expected = torch.cov(points.T, correction=0)
        assert (covariance - expected).norm() < 0.05 * expected.norm()


def test_noise_decides_how_many_directions_and_gaussians_there_are(tiny_data, make_run):
    quiet, loud = (
        DPMoments(warp=0.0).fit(tiny_data, make_run(noise_multiplier=noise)).arguments
        for noise in (1e-4, 1.0)
    )
    assert (quiet["dimensions"], quiet["components"]) == (200, 10)
    assert loud["dimensions"] < 20
    assert loud["components"] == 1


@pytest.mark.parametrize("dimensions", [6, 200, 256])
def test_directions_are_orthogonal_also_where_noise_is_all_there_is(
    dimensions, tiny_data, make_run
):
    method = DPMoments(dimensions=dimensions, components=1, warp=0.0)
    basis = method.fit(tiny_data, make_run(noise_multiplier=50.0)).module.basis
    assert torch.allclose(basis.T @ basis, torch.eye(dimensions), atol=1e-4)


def test_every_part_is_paid_before_the_first_is_read(tiny_data, make_run, monkeypatch):
    run = make_run(epsilon=1.0)
    paid_when_read = []
    honest = run.once

    def watch(name, release):
        paid_when_read.append(len(run.ledger.entries))
        return honest(name, release)

    monkeypatch.setattr(run, "once", watch)
    monkeypatch.setattr(bending, "_STEPS", 2)
    DPMoments(**{**SETTINGS, "warp": None}, components=3).fit(tiny_data, run)
    assert paid_when_read == [5] * 5


@pytest.mark.parametrize(("warp", "parts"), [(0.0, 4), (None, 5)])
def test_the_parts_share_the_budget_as_one_gaussian(warp, parts, tiny_data, make_run, monkeypatch):
    monkeypatch.setattr(bending, "_STEPS", 2)
    run = make_run(epsilon=1.0)
    DPMoments(**{**SETTINGS, "warp": warp}, components=2).fit(tiny_data, run)
    shares = [entry.event.noise_multiplier**-2 for entry in run.ledger.entries]
    assert len(shares) == parts
    assert 1 / math.sqrt(sum(shares)) == pytest.approx(3.730632, abs=1e-4)


@pytest.mark.parametrize("best", range(3))
def test_draws_are_bent_as_far_as_most_records_bear(best, tiny_data, make_run, monkeypatch):
    strength = dp_moments._STRENGTHS[best]
    monkeypatch.setattr(bending, "raw_correct", lambda made, _: 500 * (made.warp == strength))
    found = DPMoments(**{**SETTINGS, "warp": None}).fit(tiny_data, make_run(noise_multiplier=1.0))
    assert found.arguments["warp"] == found.module.warp == strength


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("loudness", [1.0, 1e6])
def test_one_record_moves_every_sum_by_no_more_than_was_paid_for(
    view, loudness, tiny_data, make_run, monkeypatch
):
    """With directions, centres and reach the same: they come of releases before."""
    raw, bounds = [], []
    honest = mechanisms.noisy_sum

    def look(raw_sum, *, paid, **rest):
        raw.append(raw_sum.clone())
        bounds.append(paid.query.sensitivity)
        return honest(0 * raw_sum, paid=paid, **rest)

    monkeypatch.setattr("dpray.privacy.mechanisms.noisy_sum", look)
    monkeypatch.setattr("dpray.privacy.slot_moments.noisy_sum", look)
    private = tiny_data.private
    pixels = private.pixels.clone()
    pixels[0] *= loudness
    method = DPMoments(**SETTINGS, view=view, components=2)
    for rows in (slice(0, None), slice(1, None)):
        some = Images(pixels[rows], private.labels[rows], private.ids[rows])
        data = dataclasses.replace(tiny_data, private=some)
        method.fit(data, make_run(noise_multiplier=1.0))
    for whole, less, bound in zip(raw[:4], raw[4:], bounds, strict=False):
        moved = float((whole - less).norm())
        assert 0 < moved <= bound * (1 + 1e-6)


def test_draws_of_upright_images_lie_as_the_records_do(tiny_data, make_run):
    """A bar that lies anywhere: seen upright it is one bar, and its places are kept."""
    rng = torch.Generator().manual_seed(3)
    pixels = torch.zeros(300, 1, 16, 16)
    for image, place in zip(pixels, torch.randint(2, 12, (300,), generator=rng), strict=True):
        image[0, 4:12, place : place + 2] = 1.0
    records = Images(pixels, torch.arange(300) % 3, torch.arange(300))
    bars = dataclasses.replace(tiny_data, private=records, num_records=300)
    release = DPMoments(**SETTINGS, view="upright").fit(bars, make_run(noise_multiplier=1e-3))
    assert release.module.basis.shape[0] == 256 + NUMBERS
    drawn = release.sample(torch.arange(60) % 3, rng)

    def places(images):
        columns = images.sum((1, 2))
        return (columns * torch.arange(16)).sum(1) / columns.sum(1)

    assert (places(drawn).std() - places(pixels).std()).abs() < 1.0
    # One sharp bar each, and no mixture of bars at many places.
    assert (drawn.sum((1, 2)).topk(3).values.sum(1) / drawn.sum((1, 2, 3))).mean() > 0.8


@pytest.mark.parametrize(
    "settings", [{"dimensions": 0}, {"components": 0}, {"radius": 2.0}, {"warp": -1.0}]
)
def test_settings_that_make_no_sense_are_refused(settings, tiny_data):
    with pytest.raises(BadInput, match="must be"):
        DPMoments(**settings).check(tiny_data)


def test_an_unknown_view_is_refused_with_the_choices(tiny_data):
    with pytest.raises(BadInput, match="no view 'sideways'; choose from: ink, pixels, upright"):
        DPMoments(view="sideways").check(tiny_data)


def test_a_set_holds_means_of_draws_and_costs_what_a_generator_costs(tiny_data, make_run):
    run = make_run(noise_multiplier=1e-6)
    release = DPMoments(**{**SETTINGS, "warp": None}, spc=2).fit(tiny_data, run)
    assert [entry.name for entry in run.ledger.entries] == list(mixture.SHARES)
    assert release.model == "image-set"
    assert release.module.labels.tolist() == [0, 0, 1, 1, 2, 2]
    for label in range(3):
        true = tiny_data.private.pixels[tiny_data.private.labels == label].mean(0)
        drawn = release.module.images[release.module.labels == label].mean(0)
        assert torch.allclose(drawn, true, atol=0.15)


@pytest.mark.parametrize("settings", [{"spc": 0}, {"spc": 4001}, {"spc": 5, "warp": 1.0}])
def test_a_set_that_cannot_be_is_refused(settings, tiny_data):
    with pytest.raises(BadInput, match="must be"):
        DPMoments(**settings).check(tiny_data)
