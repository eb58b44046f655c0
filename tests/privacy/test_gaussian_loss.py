"""A grid found at once is the grid that dp_accounting finds point by point."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from dpray.privacy.gaussian_loss import gaussian_pld

AT_THE_EDGE = 1 - math.exp(-0.5)  # the loss of whoever is never drawn lies on the grid


def masses(pld):
    return [
        (pmf._lower_loss, pmf._infinity_mass, pmf._probs)
        for pmf in (pld._pmf_remove.to_dense_pmf(), pld._pmf_add.to_dense_pmf())
    ]


@pytest.mark.parametrize("noise", [0.3, 1.1, 20.0])
@pytest.mark.parametrize("rate", [1e-6, 0.01, AT_THE_EDGE, 0.9, 1.0])
def test_every_mass_is_the_librarys(noise, rate):
    """But for the last bits: a processor may round one number and a row of them differently."""
    ours = masses(gaussian_pld(noise, rate, 1e-3))
    library = masses(
        from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-3)
    )
    for mine, theirs in zip(ours, library, strict=True):
        assert mine[0] == theirs[0]
        assert mine[1] == pytest.approx(theirs[1], rel=1e-9, abs=1e-18)
        np.testing.assert_allclose(mine[2], theirs[2], rtol=1e-9, atol=1e-15)


def test_a_little_less_noise_is_another_loss():
    (mine, _), (other, _) = (masses(gaussian_pld(noise, 0.01, 1e-3)) for noise in (1.1, 1.0999))
    length = min(len(mine[2]), len(other[2]))
    assert np.abs(mine[2][:length] - other[2][:length]).max() > 1e-9
