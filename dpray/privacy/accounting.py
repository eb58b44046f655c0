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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq

from dpray.errors import BadInput
from dpray.privacy.subsets import (
    SubsetAwareAccountant,
    SubsetsDpEvent,
    gaussian_profile,
    rdp_stand_in,
)

LARGEST_SENSIBLE_EPSILON = 20.0
# Of a typical privacy loss. Beyond it the distribution of the loss takes gigabytes to say that
# there is no privacy. RDP is no guide to that: where noise is low it reads a thousand times high.
LARGEST_FOR_PLD = 1e5
_LARGEST_FOR_SUBSETS = 1e9  # whose grid grows with the loss, down to where rounding errors show
# Whole orders of a sampled Gaussian are finite sums; in between only those that often decide.
_QUICK_ORDERS = (1.25, 1.5, 1.75, 2.25, 2.5, 2.75, 3.5, *range(2, 64), 128, 256, 512, 1024)
MOST_GRID_POINTS = 5e5  # of a step that draws subsets, and of the profile an audit asks for

# dp_accounting warns for every Renyi order it leaves out; fewer orders only loosen a bound.
logging.getLogger("absl").setLevel(logging.ERROR)


class Adjacency(StrEnum):
    """Which datasets count as neighbours. Numbers of different relations do not compare."""

    ADD_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"


RELATIONS = {
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
    sensitivity; for replace-one the shift is doubled here and nowhere else. A `SubsetsDpEvent`
    has its doubled shift already and costs the same under both.
    """
    kept = tuple(event for event in events if not isinstance(event, dp.NoOpDpEvent))
    if not kept:
        return Cost(0.0, 0.0, 0.0)
    joint = kept[0] if len(kept) == 1 else dp.ComposedDpEvent(list(kept))
    return _cost(repr(joint), HashableEvent(joint), delta, adjacency, coarse)


class HashableEvent:
    """Carries an event past lru_cache, which keys on the representation beside it."""

    def __init__(self, event: dp.DpEvent) -> None:
        self.event = event

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableEvent)


@lru_cache(maxsize=1024)
def _cost(
    _key: str, hashable: HashableEvent, delta: float, adjacency: Adjacency, coarse: bool
) -> Cost:
    event = hashable.event
    exact = _exact_gaussian(event, delta, adjacency)
    if coarse and exact is not None:
        return Cost(pld=None, rdp=None, exact=exact)  # nothing can be lower
    if is_of_subsets(event):
        pld = _refined_pld(event, delta, adjacency, exact, coarse)
        quick = coarse and pld is not None
        return Cost(pld=pld, rdp=None if quick else rdp_bound(event, delta, adjacency), exact=exact)
    rdp = rdp_bound(event, delta, adjacency, orders=_QUICK_ORDERS if coarse else None)
    if rdp is not None and math.isinf(rdp) and _holds_no_noise(event):
        return Cost(pld=math.inf, rdp=math.inf, exact=None)
    if max(losses_of(event)) > LARGEST_FOR_PLD:
        return Cost(pld=None, rdp=rdp, exact=exact)
    pld = _pld(
        event,
        delta,
        adjacency,
        grid_step(exact or rdp or max(losses_of(event))) * (10 if coarse else 1),
    )
    return Cost(pld=pld, rdp=rdp, exact=exact)


def _leaves(event: dp.DpEvent) -> Iterator[dp.DpEvent]:
    """The single events that a composed, repeated or sampled one is made of."""
    if isinstance(event, dp.ComposedDpEvent):
        for inner in event.events:
            yield from _leaves(inner)
    elif isinstance(event, dp.SelfComposedDpEvent | dp.PoissonSampledDpEvent):
        yield from _leaves(event.event)
    else:
        yield event


def _holds_no_noise(event: dp.DpEvent) -> bool:
    return any(isinstance(leaf, dp.NonPrivateDpEvent) for leaf in _leaves(event))


def is_of_subsets(event: dp.DpEvent) -> bool:
    return any(isinstance(leaf, SubsetsDpEvent) for leaf in _leaves(event))


def losses_of(event: dp.DpEvent) -> tuple[float, float]:
    """About how large the privacy loss is: on average, and of the largest single draw."""
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            loss = 0.5 / max(noise, 1e-100) ** 2
            return loss, loss
        case SubsetsDpEvent(sample_rate=rate, shift=shift):
            loss = 0.5 * min(shift, 1e100) ** 2
            # Draws that are hidden also hide the loss: by the chi-squared divergence, about.
            hidden = {
                "one-of-k": rate**2 * math.expm1(min(shift**2, 500.0)) / 2,
                "poisson": rate**2 * math.expm1(min(shift**2 / 4, 500.0)) * 2,
            }
            return min(rate * loss, hidden.get(event.sampling, math.inf)), loss
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            mean, largest = losses_of(inner)
            return rate * mean, largest
        case dp.SelfComposedDpEvent(event=inner, count=count):
            mean, largest = losses_of(inner)
            return count * mean, largest
        case dp.ComposedDpEvent(events=inner) if inner:
            means, largest_ones = zip(*(losses_of(e) for e in inner), strict=True)
            return sum(means), max(largest_ones)
    return 0.0, 0.0


def grid_step(estimate: float | None) -> float:
    """Fine where epsilon is small and the grid's pessimism shows, coarse where it is huge."""
    if estimate is None:
        return 1e-4
    for limit, step in ((0.35, 1e-5), (30.0, 1e-4), (300.0, 1e-3), (3000.0, 1e-2)):
        if estimate < limit:
            return step
    return 1e-1


def _refined_pld(
    event: dp.DpEvent, delta: float, adjacency: Adjacency, exact: float | None, coarse: bool
) -> float | None:
    """PLD where subsets are drawn: no Renyi bound foretells epsilon, so the first result does."""
    mean, largest = losses_of(event)
    loss = max(mean, largest)
    if loss > _LARGEST_FOR_SUBSETS:
        return None
    likely = exact or loss + 2 * math.sqrt(loss * -math.log(delta))
    factor = 10 if coarse else 1
    # A draw that hardly ever happens may cost next to nothing and yet have a huge loss to store.
    finest = max(largest + 10 * math.sqrt(2 * largest), 5 * mean) / MOST_GRID_POINTS * factor
    step = max(grid_step(likely) * factor, finest)
    best = _pld(event, delta, adjacency, step)
    while best and (finer := max(grid_step(best) * factor, finest)) < step:
        step, again = finer, _pld(event, delta, adjacency, finer)
        best = best if again is None else min(best, again)
    return best


def _pld(event: dp.DpEvent, delta: float, adjacency: Adjacency, step: float) -> float | None:
    accountant = SubsetAwareAccountant(RELATIONS[adjacency], value_discretization_interval=step)
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


def rdp_bound(
    event: dp.DpEvent,
    delta: float,
    adjacency: Adjacency,
    *,
    orders: Sequence[float] | None = None,
) -> float | None:
    """Epsilon by Renyi divergence, at the library's `orders` unless others are given."""
    draws_subsets, replace = is_of_subsets(event), adjacency is Adjacency.REPLACE
    if replace or draws_subsets:
        # RDP takes noise over sensitivity as given, where PLD doubles the shift by itself.
        try:
            event = as_given_to_rdp(event, 2 if replace else 1)
        except TypeError:
            return None
    # It knows one of K subsets under replace-one alone. Gaussians cost it the same under both;
    # a Poisson sample beside it is then not supported.
    relation = RELATIONS[Adjacency.REPLACE if draws_subsets else adjacency]
    accountant = RdpAccountant(orders, neighboring_relation=relation)
    if not accountant.supports(event):
        return None
    accountant.compose(event)
    return _or_infinite(accountant.get_epsilon(delta))


def as_given_to_rdp(event: dp.DpEvent, doubling: int) -> dp.DpEvent:
    """The event with noise over the distance of neighbours, who are `doubling` apart."""
    match event:
        case SubsetsDpEvent():
            return rdp_stand_in(event)  # which has twice the distance under either adjacency
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return dp.GaussianDpEvent(noise / doubling)
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return dp.SelfComposedDpEvent(as_given_to_rdp(inner, doubling), count)
        case dp.ComposedDpEvent(events=inner):
            return dp.ComposedDpEvent([as_given_to_rdp(e, doubling) for e in inner])
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return dp.PoissonSampledDpEvent(rate, as_given_to_rdp(inner, doubling))
        case dp.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=count, event=inner
        ) if doubling == 2:
            inner = as_given_to_rdp(inner, doubling)
            return dp.SampledWithoutReplacementDpEvent(size, count, inner)
    raise TypeError(f"no rule for the neighbours of {event!r}")


def _squared_shift(event: dp.DpEvent, doubling: int) -> float | None:
    """How far apart neighbours are where the event is unsampled Gaussians throughout."""
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return math.inf if noise < 1e-100 else doubling**2 * noise**-2
        case SubsetsDpEvent(sampling="every", shift=shift):
            return math.inf if shift > 1e100 else shift**2
        case dp.SelfComposedDpEvent(event=inner, count=count):
            squared = _squared_shift(inner, doubling)
            return None if squared is None else count * squared
        case dp.ComposedDpEvent(events=inner):
            parts = [_squared_shift(e, doubling) for e in inner]
            return None if None in parts else sum(p for p in parts if p is not None)
    return None


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Delta of two unit Gaussians `shift` apart (Balle and Wang 2018, theorem 8)."""
    return float(gaussian_profile(np.asarray(epsilon), shift))


def _exact_gaussian(event: dp.DpEvent, delta: float, adjacency: Adjacency) -> float | None:
    squared = _squared_shift(event, 2 if adjacency is Adjacency.REPLACE else 1)
    if squared is None:
        return None
    shift = math.sqrt(squared)
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
    largest = max((max(losses_of(event)) for event in events), default=0.0)
    step = max(1e-3, largest / MOST_GRID_POINTS)
    accountant = SubsetAwareAccountant(RELATIONS[adjacency], value_discretization_interval=step)
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
