"""What an event costs: epsilon at a delta, by three upper bounds kept side by side.

PLD (dp_accounting, tight), RDP (looser, never fails) and, where every part is an unsampled
Gaussian, the exact Gaussian profile (Balle and Wang 2018). All are upper bounds for events
whose parameters were fixed in advance, so the least is reported. Opacus's PRV stands beside
them as a cross-check; its `gdp` reads below the truth and is not offered.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpray.errors import BadInput

LARGEST_SENSIBLE_EPSILON = 20.0
# Of a typical privacy loss. Beyond it the distribution of the loss takes gigabytes to say that
# there is no privacy. RDP is no guide to that: where noise is low it reads a thousand times high.
_LARGEST_FOR_PLD = 1e5

# dp_accounting warns for every Renyi order it leaves out; fewer orders only loosen a bound.
logging.getLogger("absl").setLevel(logging.ERROR)


class Adjacency(StrEnum):
    """Which datasets count as neighbours. Numbers of different relations do not compare."""

    ADD_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"


_RELATIONS = {
    Adjacency.ADD_REMOVE: dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE: dp.NeighboringRelation.REPLACE_ONE,
}


@dataclass(frozen=True)
class Budget:
    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise BadInput(f"epsilon {self.epsilon:g} is out of range: it must be above 0")
        if not 0 < self.delta < 1:
            raise BadInput(f"delta {self.delta:g} is out of range: it must be between 0 and 1")

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.epsilon)

    def __str__(self) -> str:
        return f"(epsilon {self.epsilon:g}, delta {self.delta:g})"


@dataclass(frozen=True)
class Cost:
    """Epsilon of one event by each accountant. None where that accountant has no bound."""

    pld: float | None
    rdp: float | None
    exact: float | None

    @property
    def epsilon(self) -> float:
        known = [value for value in (self.pld, self.rdp, self.exact) if value is not None]
        return min(known, default=math.inf)

    def by_accountant(self) -> dict[str, float | None]:
        return {"pld": self.pld, "rdp": self.rdp, "exact-gaussian": self.exact}


def cost_of(
    events: Sequence[dp.DpEvent],
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    *,
    coarse: bool = False,
) -> Cost:
    """The cost of all `events` together. `coarse` is quicker, as safe, and looser as a rule.

    Guarantee: an upper bound on epsilon of the adaptive composition of the events under
    `adjacency`. A Gaussian's noise multiplier is always noise over the add-or-remove-one
    sensitivity; for replace-one the shift is doubled here and nowhere else.
    """
    kept = tuple(event for event in events if not isinstance(event, dp.NoOpDpEvent))
    if not kept:
        return Cost(0.0, 0.0, 0.0)
    joint = kept[0] if len(kept) == 1 else dp.ComposedDpEvent(list(kept))
    return _cost(repr(joint), _Hashable(joint), delta, adjacency, coarse)


class _Hashable:
    """Carries an event past lru_cache, which keys on the representation beside it."""

    def __init__(self, event: dp.DpEvent) -> None:
        self.event = event

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashable)


@lru_cache(maxsize=1024)
def _cost(_key: str, hashable: _Hashable, delta: float, adjacency: Adjacency, coarse: bool) -> Cost:
    event = hashable.event
    exact = _exact_gaussian(event, delta, adjacency)
    if coarse and exact is not None:
        return Cost(pld=None, rdp=None, exact=exact)  # nothing can be lower
    rdp = _rdp(event, delta, adjacency)
    if rdp is not None and math.isinf(rdp) and _holds_no_noise(event):
        return Cost(pld=math.inf, rdp=math.inf, exact=None)
    if max(_losses(event)) > _LARGEST_FOR_PLD:
        return Cost(pld=None, rdp=rdp, exact=exact)
    pld = _pld(
        event,
        delta,
        adjacency,
        _grid_step(exact or rdp or max(_losses(event))) * (10 if coarse else 1),
    )
    return Cost(pld=pld, rdp=rdp, exact=exact)


def _holds_no_noise(event: dp.DpEvent) -> bool:
    if isinstance(event, dp.ComposedDpEvent):
        return any(_holds_no_noise(e) for e in event.events)
    if isinstance(event, dp.SelfComposedDpEvent | dp.PoissonSampledDpEvent):
        return _holds_no_noise(event.event)
    return isinstance(event, dp.NonPrivateDpEvent)


def _losses(event: dp.DpEvent) -> tuple[float, float]:
    """About how large the privacy loss is: on average, and of the largest single draw."""
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            loss = 0.5 / max(noise, 1e-100) ** 2
            return loss, loss
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            mean, largest = _losses(inner)
            return rate * mean, largest
        case dp.SelfComposedDpEvent(event=inner, count=count):
            mean, largest = _losses(inner)
            return count * mean, largest
        case dp.ComposedDpEvent(events=inner) if inner:
            means, largest_ones = zip(*(_losses(e) for e in inner), strict=True)
            return sum(means), max(largest_ones)
    return 0.0, 0.0


def _grid_step(estimate: float | None) -> float:
    """Fine where epsilon is small and the grid's pessimism shows, coarse where it is huge."""
    if estimate is None:
        return 1e-4
    for limit, step in ((0.35, 1e-5), (30.0, 1e-4), (300.0, 1e-3), (3000.0, 1e-2)):
        if estimate < limit:
            return step
    return 1e-1


def _pld(event: dp.DpEvent, delta: float, adjacency: Adjacency, step: float) -> float | None:
    accountant = PLDAccountant(_RELATIONS[adjacency], value_discretization_interval=step)
    if not accountant.supports(event):
        return None
    try:
        accountant.compose(event)
    except (MemoryError, ValueError):
        return None  # a grid too large to hold: RDP still bounds it
    return _or_infinite(accountant.get_epsilon(delta))


def _or_infinite(value: float) -> float:
    """What an accountant could not compute bounds nothing."""
    return math.inf if math.isnan(value) else float(value)


def _rdp(event: dp.DpEvent, delta: float, adjacency: Adjacency) -> float | None:
    accountant = RdpAccountant(neighboring_relation=_RELATIONS[adjacency])
    if adjacency is Adjacency.REPLACE:
        # RDP takes noise over sensitivity as given, where PLD doubles the shift by itself.
        try:
            event = _with_halved_noise(event)
        except TypeError:
            return None
    if not accountant.supports(event):
        return None
    accountant.compose(event)
    return _or_infinite(accountant.get_epsilon(delta))


def _with_halved_noise(event: dp.DpEvent) -> dp.DpEvent:
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return dp.GaussianDpEvent(noise / 2)
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return dp.SelfComposedDpEvent(_with_halved_noise(inner), count)
        case dp.ComposedDpEvent(events=inner):
            return dp.ComposedDpEvent([_with_halved_noise(e) for e in inner])
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return dp.PoissonSampledDpEvent(rate, _with_halved_noise(inner))
        case dp.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=count, event=inner
        ):
            return dp.SampledWithoutReplacementDpEvent(size, count, _with_halved_noise(inner))
    raise TypeError(f"no rule for replace-one neighbours of {event!r}")


def _gaussian_precision(event: dp.DpEvent) -> float | None:
    """The sum of 1 / noise^2 where the event is unsampled Gaussians throughout."""
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return math.inf if noise < 1e-100 else noise**-2
        case dp.SelfComposedDpEvent(event=inner, count=count):
            precision = _gaussian_precision(inner)
            return None if precision is None else count * precision
        case dp.ComposedDpEvent(events=inner):
            parts = [_gaussian_precision(e) for e in inner]
            return None if None in parts else sum(p for p in parts if p is not None)
    return None


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Delta of two unit Gaussians `shift` apart (Balle and Wang 2018, theorem 8)."""
    upper = ndtr(shift / 2 - epsilon / shift)
    lower = math.exp(min(epsilon + log_ndtr(-shift / 2 - epsilon / shift), 0.0))
    return float(upper - lower)


def _exact_gaussian(event: dp.DpEvent, delta: float, adjacency: Adjacency) -> float | None:
    precision = _gaussian_precision(event)
    if precision is None:
        return None
    shift = math.sqrt(precision) * (2 if adjacency is Adjacency.REPLACE else 1)
    if math.isinf(shift):
        return math.inf
    if gaussian_delta(0.0, shift) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, shift) > delta:
        high *= 2
    root = brentq(lambda e: gaussian_delta(e, shift) - delta, 0.0, high, xtol=1e-12, rtol=1e-12)
    return float(root) * (1 + 1e-10)  # to the safe side of the root


def delta_of(
    events: Sequence[dp.DpEvent],
    epsilons: Sequence[float],
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> list[float]:
    """The privacy profile: delta at each epsilon, by PLD. What an audit tests a run against."""
    accountant = PLDAccountant(_RELATIONS[adjacency], value_discretization_interval=1e-3)
    for event in events:
        accountant.compose(event)
    return [float(accountant.get_delta(epsilon)) for epsilon in epsilons]


def prv_epsilon(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Opacus's PRV accountant on the same Poisson-sampled Gaussian: a second opinion."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, sample_rate, steps)]
    with warnings.catch_warnings():
        # It looks for its grid by RDP and warns of a loose start: the result is not concerned.
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta=delta))
