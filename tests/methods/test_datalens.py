"""DataLens: what its signs cost, where they lead, and that a generator follows."""

import math

import pytest
import torch
from scipy.special import ndtr

from dpray.methods.datalens import DataLens
from dpray.privacy.accounting import cost_of
from dpray.privacy.queries import PaidQuery

TINY = {"teachers": 6, "rounds": 12, "questions": 12, "num_fakes": 60, "signs": 20, "stride": 0.3}


def test_the_published_settings_cost_what_they_truly_do():
    """Noise 800 on 300 signs, 109 steps of 15 images: reference/baselines.md 3.5."""
    paper = DataLens(**DataLens.presets["paper"])
    asked = paper.query(800.0 / paper.query(1.0).sensitivity)
    assert asked.event.count == 1635
    epsilon = cost_of([asked.event], 1e-5, coarse=True).epsilon
    shift = 2 * math.sqrt(300 * 1635) / 800.0
    tail = math.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift)
    assert ndtr(shift / 2 - epsilon / shift) - tail == pytest.approx(1e-5, rel=1e-6)
    assert 8.4 < epsilon < 10.0  # which a looser conversion makes of it
    # Charged for norm root k alone, as if a teacher could only add its signs, it would be half.
    halved = paper.query(800.0 / 300**0.5)
    assert cost_of([halved.event], 1e-5, coarse=True).epsilon < 4.0


def test_a_coordinate_moves_where_enough_teachers_agree(tiny_data, make_run):
    method = DataLens(**{**TINY, "threshold": 0.5})
    paid = PaidQuery(method.query(1.0), entry=0)
    pupil = method.pupil(torch.nn.Linear(1, 1), paid, tiny_data, make_run())
    noisy = torch.tensor([[6.0, 3.1, 3.0, -2.9, -3.1, 0.0]]).double()
    assert pupil.directions(0, noisy).tolist() == [[1, 1, 0, 0, -1, 0]]


def test_it_learns_which_stripe_a_class_has_where_noise_is_low(tiny_data, make_run):
    release = DataLens(**TINY).fit(tiny_data, make_run(noise_multiplier=0.05))
    labels = torch.arange(300) % 3
    drawn = release.sample(labels, torch.Generator().manual_seed(0))
    rows = torch.stack([drawn[labels == c].mean((0, 1, 3)) for c in range(3)])  # of pixels
    stripes = torch.stack([rows[:, 5 * c : 5 * c + 5].mean(1) for c in range(3)], 1)
    assert stripes.argmax(1).tolist() == [0, 1, 2]


def test_where_too_few_agree_nothing_of_the_noise_or_the_records_gets_through(tiny_data, make_run):
    method = DataLens(**{**TINY, "threshold": 1e6, "rounds": 2})
    release = method.fit(tiny_data, make_run(noise_multiplier=0.05))
    fresh = method.fit(tiny_data, make_run(noise_multiplier=50.0))
    same = zip(release.module.parameters(), fresh.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
