"""G-PATE: a vote for each direction of each image, and the way back to pixels."""

import math

import pytest
import torch
from scipy.special import ndtr

from dpray.methods.g_pate import GPate
from dpray.privacy.accounting import cost_of
from dpray.privacy.queries import PaidQuery

TINY = {"teachers": 6, "rounds": 12, "questions": 12, "num_fakes": 60}


def test_the_published_settings_cost_what_they_truly_do():
    """Noise 100 on ten votes an image, 50 steps of 30 images: reference/baselines.md 3.4."""
    paper = GPate(**GPate.presets["paper"])
    asked = paper.query(100.0 / 2**0.5)
    assert asked.event.count == 50 * 30 * 10
    for steps, fits in ((50, True), (51, False)):  # with the published test of a majority
        renyi = steps * 300 * (1 / 100.0**2 + 1 / (2 * 600.0**2))
        assert (renyi + 2 * math.sqrt(renyi * math.log(1e5)) <= 10.0) is fits
    epsilon = cost_of([asked.event], 1e-5, coarse=True).epsilon
    shift = math.sqrt(2 * 15_000) / 100.0
    tail = math.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift)
    assert ndtr(shift / 2 - epsilon / shift) - tail == pytest.approx(1e-5, rel=1e-6)
    once_an_image = GPate(**{**GPate.presets["paper"], "projections": 1}).query(100.0 / 2**0.5)
    assert cost_of([once_an_image.event], 1e-5, coarse=True).epsilon < 2.5


def pupil(tiny_data, make_run, **settings):
    method = GPate(**{**TINY, **settings})
    paid = PaidQuery(method.query(0.01), entry=0)
    return method.pupil(torch.nn.Linear(1, 1), paid, tiny_data, make_run())


def test_what_all_teachers_want_comes_back_as_far_as_the_directions_show_it(tiny_data, make_run):
    made = pupil(tiny_data, make_run, projections=64, bins=200, reach=8.0)
    wanted = torch.randn(12, 64, generator=torch.Generator().manual_seed(0))
    noisy = made.ask(iter([wanted.expand(6, -1, -1)]), torch.arange(6), 0)
    found = made.directions(0, noisy)
    unit = wanted / wanted.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, unit, atol=0.05, rtol=0)


def test_a_gradient_that_is_not_finite_votes_for_the_middle(tiny_data, make_run):
    made = pupil(tiny_data, make_run, bins=5)
    raw = torch.full((6, 12, 64), float("nan"))
    assert (made._bins(raw, made._matrices(0)) == 2).all()


def test_it_learns_which_stripe_a_class_has_where_noise_is_low(tiny_data, make_run):
    release = GPate(**TINY).fit(tiny_data, make_run(noise_multiplier=0.05))
    labels = torch.arange(300) % 3
    drawn = release.sample(labels, torch.Generator().manual_seed(0))
    rows = torch.stack([drawn[labels == c].mean((0, 1, 3)) for c in range(3)])  # of pixels
    stripes = torch.stack([rows[:, 5 * c : 5 * c + 5].mean(1) for c in range(3)], 1)
    assert stripes.argmax(1).tolist() == [0, 1, 2]
