"""The noisy sum, tested in two worlds: with the record and without it (privacy.md 7.2, 4)."""

import numpy as np
import pytest
import torch

from dpray.errors import BudgetExceeded
from dpray.privacy.accounting import Budget
from dpray.privacy.audit import profile_audit
from dpray.privacy.ledger import Ledger
from dpray.privacy.mechanisms import noisy_sum
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum

TRIALS = 20_000


def worlds(noise: float, sensitivity: float) -> tuple[np.ndarray, np.ndarray, GaussianSum]:
    """Releases of one number in both worlds: the record adds `sensitivity`, or is not there."""
    query = GaussianSum(
        name="sum", noise_multiplier=noise, sensitivity=sensitivity, steps=2 * TRIALS
    )
    paid = Ledger(Budget(float("inf"), 1e-5)).pay(query)
    key = RunKey.insecure(3)
    # One release of many coordinates draws like many releases of one.
    there = noisy_sum(torch.full((TRIALS,), sensitivity), paid=paid, key=key, step=0)
    gone = noisy_sum(torch.zeros(TRIALS), paid=paid, key=key, step=1)
    return there.numpy(), gone.numpy(), GaussianSum(name="one", noise_multiplier=noise)


@pytest.mark.parametrize("sensitivity", [0.3, 1.0, 5.0])
def test_the_two_worlds_are_as_close_as_promised(sensitivity):
    there, gone, one = worlds(1.0, sensitivity)
    assert not profile_audit(there, gone, [one.event]).violated
    assert abs(gone.std() / sensitivity - 1) < 5 / np.sqrt(2 * TRIALS)


@pytest.mark.parametrize("factor", [0.5, 0.7])
def test_less_noise_than_was_paid_for_is_caught(factor):
    there, gone, _ = worlds(factor, 1.0)
    claimed = GaussianSum(name="one", noise_multiplier=1.0)
    assert profile_audit(there, gone, [claimed.event]).violated


def test_a_sensitivity_understated_by_two_is_caught():
    there, gone, one = worlds(1.0, 1.0)
    assert profile_audit(there + 1.0, gone, [one.event]).violated


def test_an_unpaid_sum_is_refused():
    paid = Ledger(Budget(5.0, 1e-5)).pay(GaussianSum(name="sum", noise_multiplier=3.0))
    with pytest.raises(BudgetExceeded, match="not paid for"):
        noisy_sum(torch.zeros(1), paid=paid, key=RunKey.insecure(1), step=1)
