"""Sums by slot and second moments: every record is bounded here, whatever the caller computes."""

import math

import numpy as np
import pytest
import torch

from dpray.errors import BadInput
from dpray.privacy.accounting import Budget
from dpray.privacy.audit import profile_audit
from dpray.privacy.ledger import Ledger
from dpray.privacy.mechanisms import (
    from_upper_triangle,
    noisy_second_moment,
    noisy_slot_sums,
    upper_triangle,
)
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum

ROWS, SIZE = 40, 5


def paid(noise: float = 1e-9, sensitivity: float = 1.0, steps: int = 1):
    query = GaussianSum(name="q", noise_multiplier=noise, sensitivity=sensitivity, steps=steps)
    return Ledger(Budget(math.inf, 1e-5)).pay(query)


def slot_sums(vectors, slots, **settings):
    return noisy_slot_sums(
        lambda rows: vectors[rows],
        slots,
        num_slots=3,
        dimension=vectors.shape[1],
        paid=paid(**settings),
        key=RunKey.insecure(1),
    )


@pytest.fixture
def vectors():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, SIZE, generator=rng, dtype=torch.float64)


def test_short_vectors_are_added_up_by_slot(vectors):
    slots = torch.arange(ROWS) % 3
    sums = slot_sums(vectors / 10, slots)
    expected = torch.stack([vectors[slots == slot].sum(0) / 10 for slot in range(3)])
    assert torch.allclose(sums, expected, atol=1e-7)


@pytest.mark.parametrize("sensitivity", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e30])
def test_one_record_moves_the_sums_by_no_more_than_the_sensitivity(vectors, sensitivity, scale):
    slots = torch.arange(ROWS) % 3
    added = vectors.clone()
    added[7] *= scale
    gone = torch.arange(ROWS) != 7
    whole = slot_sums(added, slots, sensitivity=sensitivity)
    less = slot_sums(added[gone], slots[gone], sensitivity=sensitivity)
    moved = float((whole - less).norm())
    assert moved <= sensitivity * (1 + 1e-6)
    assert moved > 0.99 * sensitivity  # the record is longer than the bound: it is used in full


def test_a_record_that_is_not_finite_adds_nothing(vectors):
    slots = torch.zeros(ROWS, dtype=torch.long)
    broken = vectors.clone()
    broken[3, 2] = math.nan
    broken[4] = math.inf
    kept = torch.tensor([row not in (3, 4) for row in range(ROWS)])
    assert torch.allclose(
        slot_sums(broken, slots), slot_sums(vectors[kept], slots[kept]), atol=1e-7
    )


@pytest.mark.parametrize(("true_noise", "caught"), [(1.0, False), (0.5, True)])
def test_the_noise_is_what_was_paid_for(true_noise, caught):
    trials = 20_000
    one = torch.zeros(1, trials, dtype=torch.float64)

    def release(vectors, seed):
        return noisy_slot_sums(
            lambda rows: vectors[rows],
            torch.zeros(len(vectors), dtype=torch.long),
            num_slots=1,
            dimension=trials,
            paid=paid(noise=true_noise),
            key=RunKey.insecure(seed),
        ).flatten()

    # Every coordinate is a world of its own: a record that adds 1 there, or is not there.
    there, gone = release(one, 1) + 1.0, release(one[:0], 2)
    claimed = GaussianSum(name="one", noise_multiplier=1.0)
    assert profile_audit(np.asarray(there), np.asarray(gone), [claimed.event]).violated == caught


def test_a_slot_sum_is_one_release_only(vectors):
    with pytest.raises(BadInput, match="one release"):
        slot_sums(vectors, torch.zeros(ROWS, dtype=torch.long), steps=2)


def test_a_triangle_holds_the_matrix_and_its_norm(vectors):
    matrix = vectors[:SIZE] + vectors[:SIZE].T
    triangle = upper_triangle(matrix)
    assert float(triangle.norm()) == pytest.approx(float(matrix.norm()), rel=1e-12)
    assert torch.allclose(from_upper_triangle(triangle, SIZE), matrix, rtol=1e-12)


def second_moment(vectors, noise=1e-9, sensitivity=1.0):
    return noisy_second_moment(
        lambda rows: vectors[rows],
        len(vectors),
        SIZE,
        paid=paid(noise, sensitivity),
        key=RunKey.insecure(1),
    )


def test_the_second_moment_is_that_of_the_bounded_records(vectors):
    bounded = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1)
    assert torch.allclose(second_moment(vectors), bounded.T @ bounded, atol=1e-7)


@pytest.mark.parametrize("sensitivity", [1.0, 4.0])
def test_one_record_moves_the_second_moment_by_no_more_than_the_sensitivity(vectors, sensitivity):
    added = vectors.clone()
    added[0] *= 100
    moved = second_moment(added, sensitivity=sensitivity) - second_moment(
        added[1:], sensitivity=sensitivity
    )
    assert float(upper_triangle(moved).norm()) == pytest.approx(sensitivity, rel=1e-6)


def test_the_noise_of_a_second_moment_is_symmetric_and_of_the_right_size():
    size = 200
    noisy = noisy_second_moment(
        lambda rows: torch.zeros(len(rows), size),
        1,
        size,
        paid=paid(noise=3.0, sensitivity=2.0),
        key=RunKey.insecure(2),
    )
    assert torch.equal(noisy, noisy.T)
    triangle = upper_triangle(noisy)
    assert float(triangle.std()) == pytest.approx(6.0, rel=5 / math.sqrt(2 * len(triangle)))
