"""What a search over hyperparameters costs: the trials that are kept, and those that are not.

Two ways are sound. Keep only the best of a number of trials that was drawn in secret from a
public law (`cost_of_selection`), where settings are drawn independently of each other; or charge
every trial that was declared (`cost_of_composition`), where anything may depend on anything. All
functions take one trial's event, or a `Trial`, whose score reads other records.

The bound by privacy profiles, for every e >= 0 and with m the mean number of trials, is
    delta_search(eps + (eta + 1) log(exp(e) + (1 - gamma) / gamma * delta(e))) <= m delta(eps)
and with a Poisson number of trials
    delta_search(eps + m (exp(e) - 1 + delta(e))) <= m delta(eps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Adjacency, Budget, Cost, cost_of
from dpray.privacy.planning import NOISE_RANGE, least_noise_below
from dpray.privacy.selection_laws import TrialLaw
from dpray.privacy.selection_profiles import (
    CurveAccountant,
    KnownRenyiEvent,
    Profile,
    Trial,
    as_trials,
    profile,
    profile_of,
    renyi_composed,
    renyi_of,
)

__all__ = [
    "PerTrial",
    "Profile",
    "SelectionCost",
    "Trial",
    "TrialLaw",
    "base_budget_for",
    "cost_of_composition",
    "cost_of_selection",
    "profile",
]

_ROUNDING = 1 + 1e-9  # more than the digits that gamma and sums may lose, to the safe side
_POINTS = 33  # of the grid on which e is looked for; any e is valid, a finer one gains little


@dataclass(frozen=True)
class SelectionCost:
    """Epsilon of a whole search that keeps its best trial. None where a bound is not known."""

    profile: float | None
    rdp: float | None
    law: TrialLaw
    cap: int

    @property
    def epsilon(self) -> float:
        known = [value for value in (self.profile, self.rdp) if value is not None]
        return min(known, default=math.inf)

    def by_bound(self) -> dict[str, float | None]:
        return {"profile": self.profile, "rdp": self.rdp}


def cost_of_selection(
    trial: dp.DpEvent | Trial | Sequence[Trial],
    law: TrialLaw,
    delta: float,
    *,
    cap: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    coarse: bool = False,
) -> SelectionCost:
    """Epsilon of keeping the best of K trials, K drawn from `law` and at most `cap`.

    Several trials stand for settings that cost differently: each is charged as the costliest.

    Guarantee: an upper bound where settings are drawn independently from a public law, K is
    drawn once from secret randomness, nothing but the best trial leaves (not the others, their
    scores or their number), and a trial that failed is repeated as it was or counts as worst.
    Cutting K at `cap` moves the outcome with probability P(K > cap) at most, which adds
    (1 + e^epsilon) P(K > cap) to delta; that is part of the `delta` asked for.
    """
    _check_delta(delta)
    limit = law.default_cap if cap is None else cap
    if limit < 1:
        raise BadInput(f"a cap of {limit} trials is out of range: at least 1")
    rare = law.probability_above(limit)
    # A neighbour differs in one part of the records, so the bound holds part by part.
    parts = list(zip(*(one.parts(adjacency) for one in as_trials(trial)), strict=True))
    profiles = [profile_of(events, adjacency, coarse=coarse) for events in parts]
    by_profile = [None if p is None else _by_profile(p, law, delta, rare) for p in profiles]
    by_rdp: list[float | None] = [None]
    if not coarse or None in profiles:
        curves = [renyi_of(events, adjacency) for events in parts]
        by_rdp = [None if c is None else _by_rdp(c, law, delta, rare) for c in curves]
    return SelectionCost(_largest(by_profile), _largest(by_rdp), law, limit)


def cost_of_composition(
    trial: dp.DpEvent | Trial,
    trials: int,
    delta: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    coarse: bool = False,
) -> Cost:
    """Epsilon of `trials` trials, all of which may be seen, whatever chose their settings.

    Guarantee: an upper bound on epsilon of the adaptive composition. Every declared trial is
    charged, also one that failed or was stopped early. The trainings compose on their records
    and the scores on theirs; the costlier part counts.
    """
    _check_delta(delta)
    if trials < 1:
        raise BadInput(f"{trials} trials are out of range: at least 1")
    parts = (trial if isinstance(trial, Trial) else Trial(trial)).parts(adjacency)
    profiles = [profile_of([event], adjacency, coarse=coarse, count=trials) for event in parts]
    by_pld = [None if p is None else p.composed(trials).epsilon(delta) for p in profiles]
    by_rdp: list[float | None] = [None]
    if not coarse or None in profiles:
        curves = [renyi_of([event], adjacency) for event in parts]
        by_rdp = [None if c is None else renyi_composed(c, trials, delta) for c in curves]
    return Cost(pld=_largest(by_pld), rdp=_largest(by_rdp), exact=None)


@dataclass(frozen=True)
class PerTrial:
    """What one trial may spend so that the whole search keeps to its total."""

    noise_multiplier: float
    epsilon: float
    delta: float
    total_epsilon: float

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)


def base_budget_for(
    total_epsilon: float,
    search: TrialLaw | int,
    make_trial: Callable[[float], dp.DpEvent | Trial],
    *,
    delta: float = 1e-5,
    cap: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> PerTrial:
    """The largest epsilon of one trial with which the search costs at most `total_epsilon`.

    `search` is the law of a search that keeps its best trial, or the number of trials of one
    that charges all. `make_trial` gives the trial at a noise multiplier.

    Guarantee: the noise that is returned was itself tested to fit.
    """
    total = Budget(total_epsilon, delta)

    def cost(noise: float, *, coarse: bool) -> float:
        trial = make_trial(noise)
        if isinstance(search, TrialLaw):
            return cost_of_selection(
                trial, search, delta, cap=cap, adjacency=adjacency, coarse=coarse
            ).epsilon
        return cost_of_composition(trial, search, delta, adjacency=adjacency, coarse=coarse).epsilon

    low, high = 0.25, 0.5
    while cost(high, coarse=True) > total_epsilon:
        low, high = high, high * 2
        if high > NOISE_RANGE[1]:
            raise BudgetExceeded(f"no noise level fits a search into {total}")
    while cost(low, coarse=True) <= total_epsilon and low > NOISE_RANGE[0]:
        low, high = low / 2, low
    # What fits by the coarse bound fits by the fine one, which then gains the last percent.
    noise = least_noise_below(lambda z: cost(z, coarse=True), total_epsilon, low, high, slack=5e-3)
    while noise > NOISE_RANGE[0] and cost(noise * 0.98, coarse=False) <= total_epsilon:
        noise *= 0.98
    fine = least_noise_below(
        lambda z: cost(z, coarse=False), total_epsilon, noise * 0.98, noise, slack=1e-3
    )
    parts = as_trials(make_trial(fine))[0].parts(adjacency)
    epsilon = max(cost_of([part], delta, adjacency).epsilon for part in parts)
    # Both are bounds, and one of the two was tested to fit.
    spent = min(cost(fine, coarse=False), cost(fine, coarse=True))
    return PerTrial(fine, epsilon, delta, spent)


def _by_profile(found: Profile, law: TrialLaw, delta: float, rare: float) -> float:
    growth = _growth(found, law) * _ROUNDING
    mean = law.mean * _ROUNDING
    return _within_cap(lambda d: growth + found.epsilon(d / mean), delta, rare)


def _growth(found: Profile, law: TrialLaw) -> float:
    """What choosing adds to epsilon: the least over e of the bounds above. It needs no delta."""

    def at(e: np.ndarray) -> np.ndarray:
        if law.shape == math.inf:
            return np.asarray(law.mean * (np.expm1(e) + found.delta(e)))
        odds = (1 - law.gamma) / law.gamma
        return np.asarray((law.shape + 1) * np.log(np.exp(e) + odds * found.delta(e)))

    least = float(at(np.zeros(1))[0])
    # Beyond this the term in e alone is more than what e = 0 gives.
    largest = least / (law.shape + 1) if law.shape < math.inf else math.log1p(least / law.mean)
    low, high = 0.0, largest
    for _ in range(3):
        grid = np.linspace(low, high, _POINTS)
        values = at(grid)
        best = int(np.argmin(values))
        least = min(least, float(values[best]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, _POINTS - 1)]
    return least


def _by_rdp(curve: np.ndarray, law: TrialLaw, delta: float, rare: float) -> float:
    """Papernot and Steinke 2022, theorems 2 and 6, as dp_accounting has them."""
    kept = RepeatAndSelectDpEvent(KnownRenyiEvent(tuple(curve)), law.mean, law.shape)
    accountant = CurveAccountant()
    accountant.compose(kept)
    return _within_cap(accountant.epsilon, delta, rare)


def _within_cap(epsilon_at: Callable[[float], float], delta: float, rare: float) -> float:
    """Epsilon at `delta`, of which a part is set aside for draws that the cap cut short."""
    epsilon = epsilon_at(delta)
    while rare > 0 and epsilon < 700:
        aside = (1 + math.exp(epsilon)) * rare * 1.01
        if aside >= delta:
            return math.inf
        epsilon = epsilon_at(delta - aside)
        if (1 + math.exp(min(epsilon, 700.0))) * rare <= aside:
            return epsilon
    return epsilon if rare == 0 else math.inf


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise BadInput(f"delta {delta:g} is out of range: it must be between 0 and 1")
