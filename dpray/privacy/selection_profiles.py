"""What one trial of a search costs, as curves: delta over epsilon, and Renyi over order.

A trial trains on some records and scores on others. A record is in one of the two parts, so it
meets the training or the score and never both; with replace-one neighbours it may move from one
part to the other and meets both. A bound on a search needs more of a trial than one epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import attr
import dp_accounting as dp
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant

from dpray.errors import BadInput
from dpray.privacy.accounting import (
    LARGEST_FOR_PLD,
    MOST_GRID_POINTS,
    RELATIONS,
    Adjacency,
    HashableEvent,
    as_given_to_rdp,
    grid_step,
    is_of_subsets,
    losses_of,
    rdp_bound,
)
from dpray.privacy.subsets import SubsetAwareAccountant

ORDERS = 1 + np.logspace(-2, 3.3, 220)
_ROUNDING = 1 + 1e-9  # more than the digits that the sums below may lose, to the safe side
_TYPICAL_DELTA = 1e-5  # at which epsilon is estimated, to choose a grid


@dataclass(frozen=True)
class Trial:
    """One trial: what training does to its records, and what the score does to its own.

    The two parts must be disjoint and cut without a look at the data, as by a keyed hash of the
    record's id. A score on public records is no event.
    """

    training: dp.DpEvent
    score: dp.DpEvent | None = None

    def parts(self, adjacency: Adjacency) -> list[dp.DpEvent]:
        """The events that a record can meet: for each part of the records, one."""
        if self.score is None:
            return [self.training]
        if adjacency is Adjacency.REPLACE:
            return [dp.ComposedDpEvent([self.training, self.score])]
        return [self.training, self.score]


def as_trials(trial: dp.DpEvent | Trial | Sequence[Trial]) -> list[Trial]:
    if isinstance(trial, dp.DpEvent):
        return [Trial(trial)]
    trials = [trial] if isinstance(trial, Trial) else list(trial)
    if not trials or len({one.score is None for one in trials}) > 1:
        raise BadInput(f"{len(trials)} trials: give at least one, all with a score or all without")
    return trials


class Loss:
    """A privacy loss distribution, with the sums that make one value of its profile cheap.

    Delta at epsilon is the sum of p(l) (1 - e^(epsilon - l)) over the losses l above epsilon: two
    sums from the large end, instead of a pass over the whole grid for every epsilon.
    """

    def __init__(self, distribution: PrivacyLossDistribution) -> None:
        self.distribution = distribution

    @cached_property
    def _directions(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Adding a record and removing one: losses, mass above each, e^-loss over that mass."""
        one, other = self.distribution._pmf_remove, self.distribution._pmf_add
        found = []
        for pmf in [one] if one is other else [one, other]:
            dense = pmf.to_dense_pmf()
            losses = (dense._lower_loss + np.arange(dense.size)) * dense._discretization
            masses, losses = dense._probs[losses > 0], losses[losses > 0]
            weights = masses * np.exp(-losses)
            above = dense._infinity_mass + _sums_from_the_end(masses)
            found.append((losses, above, _sums_from_the_end(weights)))
        return found

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        values = []
        for losses, above, weighted in self._directions:
            first = np.searchsorted(losses, epsilons, side="right")
            # Beyond the last loss nothing is weighted, however large e^epsilon would be.
            values.append(above[first] - np.exp(np.minimum(epsilons, 700)) * weighted[first])
        return np.asarray(np.clip(np.max(values, axis=0) * _ROUNDING, 0.0, 1.0))

    def epsilon(self, delta: float) -> float:
        largest = 0.0
        for losses, above, weighted in self._directions:
            if above[-1] >= delta / _ROUNDING:
                return math.inf
            # Delta at 0 and at each loss; between two of them it is linear in e^epsilon.
            points = np.append(0.0, losses)
            deltas = above - np.exp(np.minimum(points, 700)) * weighted
            fits = int(np.argmax(deltas <= delta / _ROUNDING))
            if fits > 0:
                excess, weight = above[fits - 1] - delta / _ROUNDING, weighted[fits - 1]
                between = math.log(excess / weight) if weight > 1e-300 else math.inf
                largest = max(largest, min(between, float(points[fits])))
        return largest * _ROUNDING


def _sums_from_the_end(values: np.ndarray) -> np.ndarray:
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


@dataclass(frozen=True)
class Profile:
    """Delta over epsilon, at most: the largest of several privacy losses."""

    losses: tuple[Loss, ...]

    def delta(self, epsilons: Sequence[float] | np.ndarray) -> np.ndarray:
        """Guarantee: an upper bound at every epsilon of at least 0; it never rises with epsilon."""
        grid = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
        if not (grid >= 0).all():
            raise BadInput(f"epsilon {grid.min():g} is out of range: a profile starts at 0")
        largest = np.max([loss.delta(grid) for loss in self.losses], axis=0)
        # Rounding may let the last digits rise: what a larger epsilon needs, a smaller one does.
        order = np.argsort(grid)[::-1]
        largest[order] = np.maximum.accumulate(largest[order])
        return np.asarray(largest)

    def epsilon(self, delta: float) -> float:
        """The least epsilon of at least 0 with that delta."""
        return max(loss.epsilon(delta) for loss in self.losses)

    def composed(self, count: int) -> Profile:
        """Of `count` uses, where every loss is of one event that is used every time."""
        if count == 1:
            return self
        return Profile(tuple(Loss(one.distribution.self_compose(count)) for one in self.losses))


def profile(
    trial: dp.DpEvent | Trial | PLDAccountant,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    *,
    coarse: bool = False,
) -> Profile:
    """The privacy profile of one trial: for a record of either part, the larger delta.

    `coarse` is quicker, as safe, and looser.
    """
    if isinstance(trial, PLDAccountant):
        loss = _loss_in(trial)
        found = None if loss is None else Profile((loss,))
    else:
        parts = [part for one in as_trials(trial) for part in one.parts(adjacency)]
        found = profile_of(parts, adjacency, coarse=coarse)
    if found is None:
        raise BadInput("this trial has no privacy profile: its loss is too large, or not known")
    return found


def profile_of(
    events: Sequence[dp.DpEvent], adjacency: Adjacency, *, coarse: bool, count: int = 1
) -> Profile | None:
    """The largest of the events' profiles, on a grid that suits `count` uses of each."""
    losses = []
    for event in events:
        step = _step_for(repr(event), HashableEvent(event), adjacency, count)
        if step is not None:
            step *= 10 if coarse else 1
            losses.append(_loss(repr(event), HashableEvent(event), adjacency, step))
    known = tuple(loss for loss in losses if loss is not None)
    return Profile(known) if len(known) == len(events) else None


@lru_cache(maxsize=256)
def _step_for(_key: str, hashable: HashableEvent, adjacency: Adjacency, count: int) -> float | None:
    """As fine a grid as epsilon of `count` uses asks for; None where none is fine enough."""
    event = hashable.event
    repeated = dp.SelfComposedDpEvent(event, count)
    mean, largest = losses_of(repeated)
    if max(mean, largest) > LARGEST_FOR_PLD:
        return None
    estimate = rdp_bound(event, _TYPICAL_DELTA, adjacency) if count == 1 else None
    curve = _renyi(_key, hashable, adjacency) if count > 1 else None
    if curve is not None:
        estimate = renyi_composed(curve, count, _TYPICAL_DELTA)
    if estimate is None:
        estimate = mean + 2 * math.sqrt(mean * -math.log(_TYPICAL_DELTA))
    step = grid_step(estimate)
    if is_of_subsets(event):  # their grid reaches as far as the largest single loss
        step = max(step, (largest + 10 * math.sqrt(2 * largest)) / MOST_GRID_POINTS)
    return step


@lru_cache(maxsize=16)
def _loss(_key: str, hashable: HashableEvent, adjacency: Adjacency, step: float) -> Loss | None:
    accountant = SubsetAwareAccountant(RELATIONS[adjacency], value_discretization_interval=step)
    if not accountant.supports(hashable.event):
        return None
    try:
        accountant.compose(hashable.event)
    except (MemoryError, ValueError):
        return None  # a grid too large to hold: the Renyi bound is left
    return _loss_in(accountant)


def _loss_in(accountant: PLDAccountant) -> Loss | None:
    # What has no noise at all is on the accountant, not in its distribution of the loss.
    return Loss(accountant._pld) if accountant.get_delta(0.0) < 1 else None


def renyi_of(events: Sequence[dp.DpEvent], adjacency: Adjacency) -> np.ndarray | None:
    """The Renyi divergence of the costliest event at each of `ORDERS`; None if not known."""
    curves = [_renyi(repr(event), HashableEvent(event), adjacency) for event in events]
    known = [curve for curve in curves if curve is not None]
    return np.max(known, axis=0) if len(known) == len(events) else None


@lru_cache(maxsize=64)
def _renyi(_key: str, hashable: HashableEvent, adjacency: Adjacency) -> np.ndarray | None:
    event, replace = hashable.event, adjacency is Adjacency.REPLACE
    draws_subsets = is_of_subsets(event)
    if replace or draws_subsets:
        try:
            event = as_given_to_rdp(event, 2 if replace else 1)
        except TypeError:
            return None
    relation = RELATIONS[Adjacency.REPLACE if draws_subsets else adjacency]
    accountant = RdpAccountant(ORDERS, neighboring_relation=relation)
    if not accountant.supports(event):
        return None
    accountant.compose(event)
    return np.nan_to_num(accountant.rdp, nan=math.inf, posinf=math.inf)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class KnownRenyiEvent(dp.DpEvent):
    """Stands for an event whose Renyi curve was computed before, at `ORDERS`."""

    curve: tuple[float, ...]


class CurveAccountant(RdpAccountant):
    """dp_accounting's RDP accountant at `ORDERS`, which also knows a `KnownRenyiEvent`."""

    _rdp: np.ndarray

    def __init__(self) -> None:
        super().__init__(ORDERS)

    def epsilon(self, delta: float) -> float:
        value = float(self.get_epsilon(delta))
        return math.inf if math.isnan(value) else value

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> Any:
        if not isinstance(event, KnownRenyiEvent):
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            self._rdp = self._rdp + count * np.asarray(event.curve)
        return None


def renyi_composed(curve: np.ndarray, count: int, delta: float) -> float:
    """Epsilon of `count` uses of an event with that Renyi curve."""
    accountant = CurveAccountant()
    accountant.compose(KnownRenyiEvent(tuple(curve)), count)
    return accountant.epsilon(delta)
