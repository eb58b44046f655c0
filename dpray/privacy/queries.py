"""What may be asked of private data: a query says what it costs before it is asked.

A query couples the sampler, the bound and the noise, and derives its event from them, so the
event on the ledger is what the code does. `Ledger.pay(query)` turns a query into a
`PaidQuery`, and the functions that read private data take nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import dp_accounting as dp

from dpray.errors import BadInput, BudgetExceeded


class Query(Protocol):
    @property
    def name(self) -> str:
        """Names the query on the ledger and keys its noise: unique within a run."""
        ...

    @property
    def steps(self) -> int: ...

    @property
    def bound(self) -> float | None:
        """The norm a record's contribution is held to; None where it is not."""
        ...

    @property
    def event(self) -> dp.DpEvent: ...


Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True)
class PaidQuery(Generic[Q]):
    """A query whose whole cost is on the ledger. Made by `Ledger.pay` alone."""

    query: Q
    entry: int  # line of the ledger that paid for it
    asked: set[int] = field(default_factory=set, compare=False, repr=False)

    def check(self, step: int) -> None:
        """Refuses a step that was not paid for, and one that was asked already.

        The noise of a step is a function of the key and the step: two answers to two different
        questions with the same noise would give away their difference.
        """
        if step in self.asked:
            raise BudgetExceeded(f"step {step} of {self.query.name!r} was asked already")
        if not 0 <= step < self.query.steps:
            raise BudgetExceeded(
                f"step {step} of {self.query.name!r} was not paid for: "
                f"the ledger holds {self.query.steps} steps"
            )
        self.asked.add(step)


def _check(noise_multiplier: float, bound: float, steps: int) -> None:
    """What is not a number must not reach an accountant: a NaN can come out as a cost of zero."""
    if not 0 <= noise_multiplier < math.inf:
        raise BadInput(f"noise multiplier {noise_multiplier} must be a number, at least 0")
    if not 0 < bound < math.inf:
        raise BadInput(f"the bound on a record's contribution, {bound}, must be above 0 and finite")
    if steps < 1:
        raise BadInput(f"{steps} steps are out of range: at least 1")


@dataclass(frozen=True, kw_only=True)
class PoissonGradients:
    """`steps` noisy sums of clipped per-example gradients, each over a fresh Poisson sample.

    Guarantee: one record adds a vector of norm at most `clip_norm` to a step, with probability
    `sample_rate`; the noise has standard deviation `noise_multiplier * clip_norm` in every
    coordinate. With add-or-remove-one neighbours that is `steps` Poisson-sampled Gaussians.
    """

    name: str = "gradients"
    sample_rate: float
    steps: int
    clip_norm: float
    noise_multiplier: float
    expected_batch_size: float  # public; the noisy sum is divided by it

    def __post_init__(self) -> None:
        _check(self.noise_multiplier, self.clip_norm, self.steps)
        if not 0 < self.sample_rate <= 1 or not 0 < self.expected_batch_size < math.inf:
            raise BadInput(
                f"sample rate {self.sample_rate} must be above 0 and at most 1, and the expected "
                f"batch size {self.expected_batch_size} above 0"
            )

    @property
    def bound(self) -> float:
        return self.clip_norm

    @property
    def event(self) -> dp.DpEvent:
        return _sampled_gaussians(self.noise_multiplier, self.sample_rate, self.steps)

    def facts(self) -> dict[str, str | float | int]:
        """What a privacy card says of it."""
        return {
            "sampling": _drawn(self.sample_rate),
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
        }


@dataclass(frozen=True, kw_only=True)
class PoissonGroups:
    """`steps` noisy vectors, each made of a whole Poisson sample and clipped as one.

    Guarantee: the vector of a sample has norm at most `clip_norm`, that of an empty one too; so
    one more record in the sample, which may change all of it, moves it by `sensitivity`, twice
    that, at most. A record is in the sample with probability `sample_rate`, and the noise has
    standard deviation `noise_multiplier * sensitivity` in every coordinate. Whoever else is drawn,
    the two worlds are a Gaussian, and its mixture at that rate with one `sensitivity` away: with
    add-or-remove-one neighbours that is `steps` Poisson-sampled Gaussians.
    """

    name: str = "group gradients"
    sample_rate: float
    steps: int
    clip_norm: float  # of the vector of a whole sample
    noise_multiplier: float

    def __post_init__(self) -> None:
        _check(self.noise_multiplier, self.clip_norm, self.steps)
        if not 0 < self.sample_rate <= 1:
            raise BadInput(f"sample rate {self.sample_rate} must be above 0 and at most 1")

    @property
    def bound(self) -> float:
        return self.clip_norm

    @property
    def sensitivity(self) -> float:
        """How far a record moves the vector at most: from one end of a ball to the other."""
        return 2 * self.clip_norm

    @property
    def event(self) -> dp.DpEvent:
        return _sampled_gaussians(self.noise_multiplier, self.sample_rate, self.steps)

    def facts(self) -> dict[str, str | float | int]:
        """What a privacy card says of it."""
        clipped = "a step clips one vector of all who joined, its noise is in units of twice that"
        return {
            "sampling": f"{_drawn(self.sample_rate)}; {clipped}",
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
        }


def _drawn(sample_rate: float) -> str:
    if sample_rate < 1:
        return "Poisson: every record joins every step on its own, at the sample rate"
    return "every record in every step"


def _sampled_gaussians(noise_multiplier: float, sample_rate: float, steps: int) -> dp.DpEvent:
    if noise_multiplier == 0.0:
        return dp.NonPrivateDpEvent()
    one: dp.DpEvent = dp.GaussianDpEvent(noise_multiplier)
    if sample_rate < 1.0:
        one = dp.PoissonSampledDpEvent(sample_rate, one)
    return dp.SelfComposedDpEvent(one, steps)


def gradients_at_noise(
    name: str, *, num_records: int, batch_size: int, steps: int, clip_norm: float
) -> Callable[[float], PoissonGradients]:
    """The query of `steps` noisy gradients for every noise multiplier, to find the least one."""
    expected = min(batch_size, num_records)

    def with_noise(noise_multiplier: float) -> PoissonGradients:
        return PoissonGradients(
            name=name,
            sample_rate=expected / num_records,
            steps=steps,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected,
        )

    return with_noise


def steps_of_epochs(epochs: float, *, num_records: int, batch_size: int) -> int:
    """Steps in which a record is drawn `epochs` times in expectation; at least one."""
    return max(1, round(epochs * num_records / min(batch_size, num_records)))


@dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """One noisy sum over all records, each adding a vector of norm at most `sensitivity`."""

    name: str
    noise_multiplier: float
    sensitivity: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        _check(self.noise_multiplier, self.sensitivity, self.steps)
        if self.noise_multiplier == 0:
            raise BadInput("a Gaussian sum without noise is no release")

    @property
    def bound(self) -> float:
        return self.sensitivity

    @property
    def event(self) -> dp.DpEvent:
        one = dp.GaussianDpEvent(self.noise_multiplier)
        return one if self.steps == 1 else dp.SelfComposedDpEvent(one, self.steps)


@dataclass(frozen=True)
class Together(Generic[Q]):
    """Several queries as one, to find the noise at which all of them fit. Each is paid alone."""

    queries: tuple[Q, ...]

    @property
    def name(self) -> str:
        return " and ".join(query.name for query in self.queries)

    @property
    def steps(self) -> int:
        return sum(query.steps for query in self.queries)

    @property
    def bound(self) -> None:
        return None

    @property
    def event(self) -> dp.DpEvent:
        return dp.ComposedDpEvent([query.event for query in self.queries])
