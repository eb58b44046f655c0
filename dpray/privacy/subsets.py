"""What it costs to draw subsets of the records, each of which adds one vector to a noisy sum.

The unit is the subset: whatever a record does to its subset, the contribution stays in a ball
of radius C, so neighbours lie within 2C of each other whether a record is added, removed or
replaced. A step is one `SubsetsDpEvent`, of one of four kinds, each with a tight profile (delta
as a function of epsilon, the same in both directions) that composes as a privacy loss
distribution. The noise multiplier is noise over C; the doubling of the shift is done here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, Literal, get_args

import attr
import dp_accounting as dp
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr, ndtr

from dpray.errors import BadInput, unknown
from dpray.privacy.gaussian_loss import gaussian_pld

Sampling = Literal["poisson", "one-of-k", "every", "revealed"]
Profile = Callable[[np.ndarray], np.ndarray]

_NEGLIGIBLE = 1e-17  # what is left of a step's delta where its grid ends; it counts as infinite


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SubsetsDpEvent(dp.DpEvent):
    """One step that releases the noisy sum of the drawn subsets' clipped vectors.

    `sampling` says what hides a subset, beside the noise:
    - "poisson": every subset joins on its own, at `sample_rate`; the absent ones add zero;
    - "one-of-k": exactly one of K = 1 / `sample_rate` joins (or B of N records do, at B/N);
    - "every": nothing, all of them join every step;
    - "revealed": the draw hides nothing, since later outputs may tell who was drawn.
    `vectors_per_draw` is how many noised vectors of norm at most C one draw gives away.
    """

    sampling: Sampling
    sample_rate: float
    noise_multiplier: float
    vectors_per_draw: int

    def __attrs_post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise unknown("sampling of subsets", str(self.sampling), get_args(Sampling))
        if not 0 < self.sample_rate <= 1 or (self.sampling == "every" and self.sample_rate != 1):
            raise BadInput(
                f"sample rate {self.sample_rate} must be above 0 and at most 1, and 1 where every "
                "subset joins"
            )
        if not 0 < self.noise_multiplier < math.inf:
            raise BadInput(f"noise multiplier {self.noise_multiplier} must be above 0 and finite")
        if type(self.vectors_per_draw) is not int or self.vectors_per_draw < 1:
            raise BadInput(f"{self.vectors_per_draw} vectors per draw: a whole number, at least 1")

    @property
    def shift(self) -> float:
        """How far apart neighbours lie at most where their subset is drawn, over the noise."""
        return 2 * math.sqrt(self.vectors_per_draw) / self.noise_multiplier


class SubsetAwareAccountant(PLDAccountant):
    """dp_accounting's PLD accountant, which also knows a `SubsetsDpEvent`, alone or composed.

    What it finds of a Gaussian under add-or-remove-one, sampled or not, is found sooner.
    """

    _pld: PrivacyLossDistribution

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> Any:
        step = self._value_discretization_interval
        match event:
            case SubsetsDpEvent():
                if do_compose:
                    self._pld = self._pld.compose(subsets_pld(event, count, step))
                return None
            case dp.GaussianDpEvent(noise_multiplier=noise) if (
                do_compose and self._is_add_or_remove and noise > 0
            ):
                self._pld = self._pld.compose(gaussian_pld(noise / math.sqrt(count), 1.0, step))
                return None
            case dp.PoissonSampledDpEvent(
                sampling_probability=rate, event=dp.GaussianDpEvent(noise_multiplier=noise)
            ) if do_compose and self._is_add_or_remove and rate > 0 and noise > 0:
                whole = gaussian_pld(noise, rate, step).self_compose(count)
                self._pld = self._pld.compose(whole)
                return None
        return super()._maybe_compose(event, count, do_compose)

    @property
    def _is_add_or_remove(self) -> bool:
        return self.neighboring_relation == dp.NeighboringRelation.ADD_OR_REMOVE_ONE


def subsets_pld(event: SubsetsDpEvent, count: int, grid_step: float) -> PrivacyLossDistribution:
    """The privacy loss of `count` such steps, on a grid.

    Guarantee: an upper bound for add, remove and replace-one alike, whatever the adjacency of
    what it is composed with. For "poisson" and "one-of-k" it takes draws that are secret, fresh
    and independent of everything before them, and contributions that depend on the subset and
    on what was released, on nothing that remembers earlier draws. "revealed" allows each subset
    a memory of its own draws, "every" any memory at all.
    """
    if event.sampling == "every":  # Gaussians add up to a Gaussian: no grid error piles up
        together = partial(gaussian_profile, shift=event.shift * math.sqrt(count))
        return PrivacyLossDistribution(_pmf(together, grid_step))
    one = _pmf(partial(_step_profile, event), grid_step)
    return PrivacyLossDistribution(one).self_compose(count)


def _step_profile(event: SubsetsDpEvent, epsilons: np.ndarray) -> np.ndarray:
    """Delta of one step at each epsilon of at least 0, the same in both directions."""
    rate, shift = event.sample_rate, event.shift
    match event.sampling:
        case "poisson":
            return _poisson_profile(epsilons, rate, shift / 2)
        case "one-of-k":
            return rate * gaussian_profile(_amplified(epsilons, rate), shift)
    return rate * gaussian_profile(epsilons, shift)


def rdp_stand_in(event: SubsetsDpEvent) -> dp.DpEvent:
    """An event known to dp_accounting's RDP accountant that costs at least as much.

    Its noise is halved already, and one of K needs the accountant's replace-one relation.
    """
    gaussian = dp.GaussianDpEvent(1 / event.shift)
    if event.sampling == "every":
        return gaussian
    share = Fraction(event.sample_rate).limit_denominator(10**6)
    if event.sampling == "one-of-k" and math.isclose(share, event.sample_rate, rel_tol=1e-12):
        size, drawn = share.denominator, share.numerator
        return dp.SampledWithoutReplacementDpEvent(size, drawn, gaussian)
    raise TypeError(f"no Renyi bound for {event!r}")


def gaussian_profile(epsilons: np.ndarray, shift: float) -> np.ndarray:
    """Delta of two unit Gaussians `shift` apart (Balle and Wang 2018, theorem 8)."""
    upper = ndtr(shift / 2 - epsilons / shift)
    lower = np.exp(np.minimum(epsilons + log_ndtr(-shift / 2 - epsilons / shift), 0.0))
    return np.asarray(upper - lower)


def _amplified(epsilons: np.ndarray, rate: float) -> np.ndarray:
    """log(1 + (e^eps - 1) / rate): advanced joint convexity (Balle et al. 2018), no overflow."""
    small = np.log1p(np.expm1(np.minimum(epsilons, 30)) / rate)
    return np.where(epsilons > 30, epsilons - math.log(rate), small)


def _poisson_profile(epsilons: np.ndarray, rate: float, shift: float) -> np.ndarray:
    """Delta between N(0) mixed at `rate` with N(+shift), and with N(-shift).

    What dp_accounting computes for a Poisson sample under replace-one, a whole grid at a time.
    The ratio of the densities grows with x, so the best test asks whether x lies beyond `cut`,
    where the ratio is e^eps: the root of a quadratic in e^(shift x).
    """
    if rate == 1:
        return gaussian_profile(epsilons, 2 * shift)
    with np.errstate(divide="ignore"):  # the logarithm of zero, at epsilon 0, is as it should be
        log_sinh = epsilons / 2 + np.log(-np.expm1(-epsilons)) - math.log(2)
    log_bend = log_sinh + math.log1p(-rate) - math.log(rate) + shift**2 / 2
    # The inverse of sinh at e^log_bend: its logarithm and log 2 where it is large.
    bend = np.arcsinh(np.exp(np.minimum(log_bend, 20)))
    cut = (epsilons / 2 + np.where(log_bend > 20, log_bend + math.log(2), bend)) / shift
    drawn = ndtr(shift - cut) - np.exp(epsilons + log_ndtr(-shift - cut))
    absent = -np.expm1(-epsilons) * np.exp(epsilons + log_ndtr(-cut))
    return np.asarray(np.maximum(rate * drawn - (1 - rate) * absent, 0.0))


def _pmf(profile: Profile, grid_step: float) -> DensePLDPmf:
    """The privacy loss on a grid by connecting the dots (Doroshenko et al. 2022), pessimistic.

    Guarantee: its delta is that of `profile` at every point of the grid and no less between
    them. The pair is the same in both directions, so a loss of -l has e^-l times the mass of l:
    that is exact, where differences of deltas near 1 would be rounding errors.
    """
    limit = grid_step
    while profile(np.array([limit]))[0] > _NEGLIGIBLE:
        limit *= 1.05
    count = math.ceil(limit / grid_step)
    losses = np.arange(1, count + 1) * grid_step
    deltas = profile(np.append(0.0, losses))
    drops = np.maximum(-np.diff(deltas), 0.0)
    shrink, gap = math.exp(-grid_step), -math.expm1(-grid_step)
    above = np.maximum(drops - shrink * np.append(drops[1:], 0.0), 0.0) / gap
    at_zero = max(1 - deltas[0] - 2 * drops[0] * shrink / gap, 0.0)
    masses = np.concatenate([(above * np.exp(-losses))[::-1], [at_zero], above])
    masses[masses < 1e-200] = 0.0  # too little to count, and too little to be divided by
    return DensePLDPmf(grid_step, -count, masses, float(deltas[-1]), pessimistic_estimate=True)
