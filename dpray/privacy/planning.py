"""Fitting a query into a budget: any one of noise, steps, rate and epsilon from the rest.

Every solver returns a value that was itself tested to fit, never the other side of a root:
a calibrated run may cost a little less than its budget and never more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dp_accounting as dp

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Adjacency, Budget, Cost, cost_of
from dpray.privacy.queries import PoissonGradients, Q

NOISE_RANGE = (1e-2, 1e7)
_MOST_STEPS = 10_000_000


def calibrate(
    make_query: Callable[[float], Q],
    budget: Budget,
    *,
    spent: Sequence[dp.DpEvent] = (),
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> Q:
    """The query with the least noise multiplier that fits `budget` after what is `spent`.

    Guarantee: the returned query, together with `spent`, costs at most `budget.epsilon`.
    """

    low, high = NOISE_RANGE[0], 0.5
    first = cost_of([*spent, make_query(low).event], budget.delta, adjacency, coarse=True)
    is_exact = first.exact is not None  # which nothing finer can better

    def cost(noise: float, *, coarse: bool) -> float:
        events = [*spent, make_query(noise).event]
        return cost_of(events, budget.delta, adjacency, coarse=coarse or is_exact).epsilon

    if cost(low, coarse=True) <= budget.epsilon and cost(low, coarse=False) <= budget.epsilon:
        return make_query(low)  # so rarely is anybody drawn that delta covers it
    while cost(high, coarse=True) > budget.epsilon:
        low, high = high, high * 2
        if high > NOISE_RANGE[1]:
            raise BudgetExceeded(f"no noise level fits {budget} after what is already spent")
    # What fits by the coarse bound fits by the fine one, which then gains the last percent.
    high = least_noise_below(lambda n: cost(n, coarse=True), budget.epsilon, low, high, slack=2e-3)
    low = high * 0.98
    while low > NOISE_RANGE[0] and cost(low, coarse=False) <= budget.epsilon:
        low, high = low * 0.98, low
    slack = 1e-4 if cost_of([make_query(high).event], budget.delta).exact is None else 1e-9
    while cost(high, coarse=False) > budget.epsilon:
        low, high = high, high * 1.02  # the accountant is not quite monotone: test, do not trust
    return make_query(
        least_noise_below(lambda n: cost(n, coarse=False), budget.epsilon, low, high, slack=slack)
    )


def least_noise_below(
    cost: Callable[[float], float], target: float, low: float, high: float, *, slack: float
) -> float:
    """A noise in [low, high] that costs at most `target` and at least `target * (1 - slack)`.

    `low` costs too much and `high` fits. Log cost is nearly straight in log noise, so the
    secant lands close; a bisection step whenever one end stays put keeps it from stalling.
    """

    def excess(noise: float) -> float:
        value = cost(noise)
        return math.log(value / target) if 0 < value < math.inf else math.copysign(50.0, value - 1)

    at_low, at_high = excess(low), excess(high)
    bisect = False
    for _ in range(60):
        if at_high >= math.log1p(-slack) or high / low <= 1 + 1e-12:
            break
        share = 0.5 if bisect or at_low > 5 else at_low / (at_low - at_high)
        # Aim a little to the side that fits: that is the side that may be returned.
        share = min(max(share + slack / 4, 0.02), 0.999)
        middle = low * (high / low) ** share
        at_middle = excess(middle)
        if at_middle > 0:
            bisect, low, at_low = at_middle > at_low / 2, middle, at_middle
        else:
            bisect, high, at_high = at_middle < at_high / 2, middle, at_middle
    return high


@dataclass(frozen=True)
class Plan:
    """A solved plan: four numbers that belong together, and what the accountants say of them."""

    noise_multiplier: float
    sample_rate: float
    steps: int
    delta: float
    cost: Cost

    @property
    def epsilon(self) -> float:
        return self.cost.epsilon


def _query(noise_multiplier: float, sample_rate: float, steps: int) -> PoissonGradients:
    return PoissonGradients(
        sample_rate=sample_rate,
        steps=steps,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        expected_batch_size=1.0,
    )


def solve(
    *,
    delta: float,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> Plan:
    """Finds the one of noise multiplier, sample rate, steps and epsilon that was left out."""
    given = {
        "noise multiplier": noise_multiplier,
        "sample rate": sample_rate,
        "steps": steps,
        "epsilon": epsilon,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise BadInput(
            f"give three of {', '.join(given)} and leave one out; "
            f"left out: {', '.join(missing) or 'none'}"
        )
    _check_ranges(noise_multiplier, sample_rate, steps)
    if epsilon is not None and not math.isfinite(epsilon):
        raise BadInput(f"epsilon {epsilon:g} is out of range: it must be a finite number above 0")

    def fits(noise: float, rate: float, count: int) -> bool:
        assert epsilon is not None
        event = _query(noise, rate, count).event
        # Most of what is tried is far off, which the quick bound tells as well as the fine one.
        roughly = cost_of([event], delta, adjacency, coarse=True).epsilon / epsilon
        if not 0.97 < roughly < 1.03:
            return roughly <= 1
        return cost_of([event], delta, adjacency).epsilon <= epsilon

    if epsilon is not None:
        Budget(epsilon, delta)
    if noise_multiplier is None:
        assert sample_rate is not None and steps is not None and epsilon is not None
        rate, count = sample_rate, steps
        query = calibrate(
            lambda noise: _query(noise, rate, count), Budget(epsilon, delta), adjacency=adjacency
        )
        noise_multiplier = query.noise_multiplier
    elif steps is None:
        assert sample_rate is not None
        steps = _most_steps(noise_multiplier, sample_rate, fits)
    elif sample_rate is None:
        sample_rate = _most_rate(noise_multiplier, steps, fits)
    assert sample_rate is not None and steps is not None
    cost = cost_of([_query(noise_multiplier, sample_rate, steps).event], delta, adjacency)
    return Plan(noise_multiplier, sample_rate, steps, delta, cost)


def _check_ranges(noise: float | None, rate: float | None, steps: int | None) -> None:
    if noise is not None and not 0.01 <= noise < math.inf:
        raise BadInput(f"noise multiplier {noise:g} is out of range: it must be at least 0.01")
    if rate is not None and not 0 < rate <= 1:
        raise BadInput(f"sample rate {rate:g} is out of range: it must be above 0 and at most 1")
    if steps is not None and not 1 <= steps <= _MOST_STEPS:
        raise BadInput(f"steps {steps} is out of range: from 1 to {_MOST_STEPS}")


def _most_steps(noise: float, rate: float, fits: Callable[[float, float, int], bool]) -> int:
    if not fits(noise, rate, 1):
        raise BudgetExceeded(
            f"not even one step fits: noise multiplier {noise:g} at sample rate {rate:g}"
        )
    low, high = 1, 2
    while fits(noise, rate, high):
        low, high = high, high * 2
        if high > _MOST_STEPS:
            raise BadInput(f"more than {low} steps fit: name a smaller noise multiplier")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(noise, rate, middle) else (low, middle)
    return low


def _most_rate(noise: float, steps: int, fits: Callable[[float, float, int], bool]) -> float:
    if fits(noise, 1.0, steps):
        return 1.0
    low, high = 1e-7, 1.0
    if not fits(noise, low, steps):
        raise BudgetExceeded(f"no sample rate fits noise multiplier {noise:g} for {steps} steps")
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(noise, middle, steps) else (low, middle)
    return low
