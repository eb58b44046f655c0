"""What it costs to draw one of K subsets, or B of N records, and release its noisy sum.

The unit is the subset: whatever a record does to its subset, the contribution stays in a ball
of radius C, so neighbours lie within 2C of each other whether a record is added, removed or
replaced. Drawing exactly one of K hides the draw; the tight one-step profile follows from
advanced joint convexity (Balle et al. 2018) and composes as a privacy loss distribution.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr, ndtr

_NEGLIGIBLE = 1e-17


def subset_epsilon(
    *, rate: float, noise_multiplier: float, steps: int, delta: float, vectors_per_draw: int
) -> float:
    """Epsilon of `steps` draws at `rate` (1/K, or B/N), noise over the clip norm C.

    Guarantee: an upper bound for add, remove and replace-one alike, if the draw of a step is
    secret and independent of everything before it, and the contribution of a subset depends on
    that subset and on what was released, on nothing that remembers earlier draws.
    `vectors_per_draw` is how many noisy vectors of norm at most C one draw gives away.
    """
    shift = 2 * math.sqrt(vectors_per_draw) / noise_multiplier
    limit = 1.0
    while _profile(np.array([limit]), rate, shift)[0] > _NEGLIGIBLE:
        limit *= 1.25
    gap = 1e-4 if limit < 200 else 5e-3
    count = math.ceil(limit / gap)
    deltas = _profile(np.arange(-count, count + 1) * gap, rate, shift)
    step = create_pmf_pessimistic_connect_dots_fixed_gap(gap, -count, count, deltas)
    whole = PrivacyLossDistribution(step).self_compose(steps)
    return float(whole.get_epsilon_for_delta(delta))


def _profile(epsilons: np.ndarray, rate: float, shift: float) -> np.ndarray:
    """Delta of one step at each epsilon, the same in both directions."""
    size = np.abs(epsilons)
    # log(1 + (e^eps - 1) / rate), without overflow for a large epsilon.
    amplified = np.where(
        size > 30, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 30)) / rate)
    )
    tail = np.exp(amplified + log_ndtr(-shift / 2 - amplified / shift))
    delta = rate * (ndtr(shift / 2 - amplified / shift) - tail)
    return np.where(epsilons >= 0, delta, -np.expm1(epsilons) + np.exp(epsilons) * delta)
