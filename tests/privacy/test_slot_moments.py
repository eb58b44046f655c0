"""Moments by slot: every record is bounded here, and they are what a sum of vectors would be."""

import math

import pytest
import torch

from dpray.errors import BadInput
from dpray.privacy.accounting import Budget
from dpray.privacy.ledger import Ledger
from dpray.privacy.mechanisms import noisy_slot_sums, upper_triangle
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum
from dpray.privacy.slot_moments import noisy_slot_moments

ROWS, SIZE, SLOTS = 40, 5, 3
WEIGHTS = (0.6, 0.7, 0.3)


def moments(points, slots, *, weights=WEIGHTS, sensitivity=1.0, steps=1, noise=1e-9):
    query = GaussianSum(name="q", noise_multiplier=noise, sensitivity=sensitivity, steps=steps)
    return noisy_slot_moments(
        lambda rows: points[rows],
        slots,
        num_slots=SLOTS,
        dimension=SIZE,
        weights=weights,
        paid=Ledger(Budget(math.inf, 1e-5)).pay(query),
        key=RunKey.insecure(1),
    )


@pytest.fixture
def points():
    rng = torch.Generator().manual_seed(0)
    return 0.5 * torch.randn(ROWS, SIZE, generator=rng, dtype=torch.float64)


@pytest.fixture
def slots():
    return torch.arange(ROWS) % (SLOTS - 1)  # nobody is in the last one


def test_they_are_the_sums_of_each_record_s_vector(points, slots):
    def vectors(rows):
        u = points[rows] / points[rows].norm(dim=1, keepdim=True).clamp(min=1)
        second = upper_triangle(u.unsqueeze(2) * u.unsqueeze(1))
        one = torch.ones(len(rows), 1, dtype=torch.float64)
        parts = zip(WEIGHTS, (u, second, one), strict=True)
        return torch.cat([weight * part for weight, part in parts], 1)

    query = GaussianSum(name="q", noise_multiplier=2.0)
    expected = noisy_slot_sums(
        vectors,
        slots,
        num_slots=SLOTS,
        dimension=SIZE + SIZE * (SIZE + 1) // 2 + 1,
        paid=Ledger(Budget(math.inf, 1e-5)).pay(query),
        key=RunKey.insecure(1),
    )
    assert torch.allclose(moments(points, slots, noise=2.0), expected, atol=1e-9)


@pytest.mark.parametrize("loudness", [1.0, 1e3, 1e30])
def test_one_record_moves_them_by_no_more_than_the_sensitivity(points, slots, loudness):
    points[7] *= loudness
    gone = torch.arange(ROWS) != 7
    moved = float((moments(points, slots) - moments(points[gone], slots[gone])).norm())
    assert moved <= math.hypot(*WEIGHTS) + 1e-6
    if loudness > 1:
        assert moved > 0.99 * math.hypot(*WEIGHTS)  # a long record is used in full


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_adds_nothing_not_even_its_count(points, slots, wrong):
    points[3, 2] = wrong
    kept = torch.arange(ROWS) != 3
    whole, rest = moments(points, slots), moments(points[kept], slots[kept])
    assert torch.allclose(whole, rest, atol=1e-7)


def test_noise_is_what_was_paid_for(points, slots):
    noise = moments(points, slots, noise=3.0) - moments(points, slots, noise=1e-9)
    assert float(noise.std()) == pytest.approx(3.0, rel=0.3)


def test_no_record_at_all_leaves_noise_alone(points, slots):
    sums = moments(points[:0], slots[:0], noise=1.0)
    assert sums.shape == (SLOTS, SIZE + SIZE * (SIZE + 1) // 2 + 1)
    assert float(sums.abs().max()) > 0


def test_weights_that_are_longer_than_what_was_paid_for_are_refused(points, slots):
    with pytest.raises(BadInput, match="need a sensitivity as large"):
        moments(points, slots, weights=(0.9, 0.9, 0.1))


def test_several_steps_are_refused_before_a_record_is_read(slots):
    with pytest.raises(BadInput, match="one release, not 2"):
        moments(None, slots, steps=2)
