"""What may be asked of private data: a query says what it costs before it is asked.

A query couples the sampler, the bound and the noise, and derives its event from them, so the
event on the ledger is what the code does. `Ledger.pay(query)` turns a query into a
`PaidQuery`, and the functions that read private data take nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import dp_accounting as dp

from dpray.errors import BudgetExceeded


class Query(Protocol):
    @property
    def name(self) -> str:
        """Names the query on the ledger and keys its noise: unique within a run."""
        ...

    @property
    def steps(self) -> int: ...

    @property
    def event(self) -> dp.DpEvent: ...


Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True)
class PaidQuery(Generic[Q]):
    """A query whose whole cost is on the ledger. Made by `Ledger.pay` alone."""

    query: Q
    entry: int  # line of the ledger that paid for it

    def check(self, step: int) -> None:
        """Refuses a step that was not paid for."""
        if not 0 <= step < self.query.steps:
            raise BudgetExceeded(
                f"step {step} of {self.query.name!r} was not paid for: "
                f"the ledger holds {self.query.steps} steps"
            )


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

    @property
    def event(self) -> dp.DpEvent:
        if self.noise_multiplier == 0.0:
            return dp.NonPrivateDpEvent()
        one: dp.DpEvent = dp.GaussianDpEvent(self.noise_multiplier)
        if self.sample_rate < 1.0:
            one = dp.PoissonSampledDpEvent(self.sample_rate, one)
        return dp.SelfComposedDpEvent(one, self.steps)


@dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """One noisy sum over all records, each adding a vector of norm at most `sensitivity`."""

    name: str
    noise_multiplier: float
    sensitivity: float = 1.0
    steps: int = 1

    @property
    def event(self) -> dp.DpEvent:
        one = dp.GaussianDpEvent(self.noise_multiplier)
        return one if self.steps == 1 else dp.SelfComposedDpEvent(one, self.steps)
