"""What a trial will ask of its records, known before it starts and without a look at them.

The event that a trial's training will be charged with follows from the method's settings, the
number of records, which is public, and the budget. So do the steps that a noise multiplier affords.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dp_accounting as dp

from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.privacy.accounting import Adjacency, Budget, cost_of
from dpray.privacy.planning import calibrate
from dpray.privacy.queries import GaussianSum, PoissonGradients, Together
from dpray.search.space import NOISE, Space, takes_a_noise_multiplier

# What a trial may take whose noise was drawn, unless the search says otherwise. A handful of
# steps trains nothing, and makes the whole search dearer: rare large losses weigh more in a search.
LEAST_STEPS, MOST_STEPS = 10, 5000
# Settings that decide what a trial costs, beside the budget itself.
_MOVE_THE_COST = frozenset(
    {
        NOISE,
        "batch_size",
        "epochs",
        "steps",
        # dp-sgd: the usual batch is one of the model. dp-vae: statistics are paid for as well.
        "model",
        "class_model",
        "statistics_noise",
        # dpmi: a learner for each class has fewer records.
        "classes",
        # dp-kvae: sums for the clustering, whose number is that of iterations.
        "clustering_noise",
        # psg: the number of queries, which may follow from spc and prior.
        "iterations",
        "outer",
        "queries",
        "spc",
        "prior",
        # dp2-vae and gs-wgan
        "encoders",
        "critics",
        "critic_state",
        "clip",
        "num_images",
        "sampling",
        "encoder_state",
        "subsets_per_step",
        # pate-gan, datalens and g-pate: together they say how many questions are asked.
        "rounds",
        "questions",
        "projections",
    }
)
# Every setting of theirs leaves one Gaussian, or several that add up to one.
_ONE_GAUSSIAN = ("dp-match", "dp-merf", "dp-moments")
# Their settings alone say what they ask.
_BY_THEIR_QUERY = ("datalens", "dp2-vae", "g-pate", "pate-gan")


class CannotMeetBudget(BadInput):
    """These settings do not fit into the budget: draw others. No private record was read."""


@dataclass(frozen=True)
class DataFacts:
    """What is public of a trial's records, and all that its cost depends on."""

    num_records: int
    num_classes: int

    @classmethod
    def of(cls, data: TrainingData) -> DataFacts:
        return cls(data.num_records, data.num_classes)


@dataclass(frozen=True)
class Batches:
    """Poisson batches as a method will draw them."""

    num_records: int
    batch_size: int
    steps: int

    @property
    def sample_rate(self) -> float:
        return self.batch_size / self.num_records

    def query(self, noise_multiplier: float) -> PoissonGradients:
        return PoissonGradients(
            sample_rate=self.sample_rate,
            steps=self.steps,
            clip_norm=1.0,
            noise_multiplier=noise_multiplier,
            expected_batch_size=1.0,
        )


def keys_that_move_the_cost(space: Space, method: type[Any]) -> list[str]:
    """The keys of a space on which it depends what a trial costs, the budget being the same."""
    if method.name in _ONE_GAUSSIAN:
        return []
    return [name for name in space if name in _MOVE_THE_COST]


def steps_for(
    method: Any,
    facts: DataFacts,
    noise_multiplier: float,
    budget: Budget,
    *,
    least_steps: int = 1,
    most_steps: int = MOST_STEPS,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> int:
    """The most steps that `budget` affords at this noise and the method's batch.

    By the quicker of two bounds, so it may be some steps in a thousand short of the most. The run
    then takes the least noise at which that many steps fit.
    """
    _refuse_other_queries(method)
    rate = _batches(method, facts).sample_rate
    where = f"noise multiplier {noise_multiplier:g} at sample rate {rate:.4g}"
    steps = _most_steps(rate, noise_multiplier, budget, most_steps, adjacency)
    if steps < least_steps:
        raise CannotMeetBudget(
            f"{where}: {budget} affords {steps} steps, and {least_steps} are needed"
        )
    if steps > most_steps:
        raise CannotMeetBudget(f"{where}: {budget} affords more than {most_steps} steps")
    return steps


def settings_with_steps(method: Any, facts: DataFacts, steps: int) -> dict[str, Any]:
    """The field of the method that says how long it trains, at this number of steps."""
    if "steps" in {field.name for field in dataclasses.fields(method)}:
        return {"steps": steps}
    batches = _batches(method, facts)
    return {"epochs": steps * batches.batch_size / batches.num_records}


def training_event(
    method: Any,
    facts: DataFacts,
    budget: Budget,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> dp.DpEvent:
    """What a run of `method` at `budget` will be charged with on its training records.

    Guarantee: the noise comes from the same search as that of the run, so it is the same noise.
    """
    if not method.private:
        return dp.NonPrivateDpEvent()
    if method.name in _ONE_GAUSSIAN:
        return score_event(budget, adjacency)
    if getattr(method, "class_model", None) == "noisy-statistics":
        first = GaussianSum(name="statistics", noise_multiplier=method.statistics_noise).event
        batches = _batches(method, facts)
        last = calibrate(batches.query, budget, spent=[first], adjacency=adjacency).event
        return dp.ComposedDpEvent([first, last])
    if method.name == "dp-kvae":
        return calibrate(
            lambda noise: Together(tuple(method.queries(noise, facts.num_records))),
            budget,
            adjacency=adjacency,
        ).event
    if method.name in _BY_THEIR_QUERY:
        return calibrate(method.query, budget, adjacency=adjacency).event
    return _calibrated(_batches(method, facts), budget, adjacency)


def score_event(
    budget: Budget, adjacency: Adjacency = Adjacency.ADD_REMOVE, looks: int = 1
) -> dp.DpEvent:
    """What a trial's score is charged with: hold-out records spend all of the budget on it.

    With several `looks` at a trial on its way, its end among them, each is charged by itself.

    Guarantee: this is what all of them are charged with together, at the noise of the run, and a
    trial that is stopped before its end is charged with less.
    """
    if looks < 1:
        raise BadInput(f"{looks} looks at a trial are out of range: its end is one")
    if looks == 1:
        return calibrate(_sum, budget, adjacency=adjacency).event
    # As the ledger adds them up, one after the other: to the last bit it is the same noise.
    found = calibrate(lambda noise: Together((_sum(noise),) * looks), budget, adjacency=adjacency)
    return dp.SelfComposedDpEvent(found.queries[0].event, looks)


def _sum(noise_multiplier: float) -> GaussianSum:
    return GaussianSum(name="score", noise_multiplier=noise_multiplier)


def _batches(method: Any, facts: DataFacts) -> Batches:
    """As the method itself counts them; how many records a class has is not public."""
    per_class = getattr(method, "classes", None) == "per-class"
    share = facts.num_classes if per_class else 1
    num_records = max(1, round(facts.num_records / share))
    if hasattr(method, "plan"):
        plan = method.plan(num_records)
        return Batches(num_records, plan.batch_size, plan.steps)
    if not hasattr(method, "schedule") and not takes_a_noise_multiplier(type(method)):
        raise BadInput(
            f"what a trial of {method.name} costs is not known before it starts; search with "
            "--charge public or --charge none"
        )
    batch_size = min(method.batch_size, num_records)
    if hasattr(method, "schedule"):
        return Batches(num_records, batch_size, method.schedule().steps)
    given = getattr(method, "steps", None)
    steps = given or max(1, round(method.epochs * num_records / batch_size))
    return Batches(num_records, batch_size, steps)


def _refuse_other_queries(method: Any) -> None:
    if not takes_a_noise_multiplier(type(method)):
        raise BadInput(f"{method.name} has no steps that would follow from a noise multiplier")
    if getattr(method, "class_model", None) == "noisy-statistics":
        raise BadInput(
            f"with class_model=noisy-statistics {method.name} asks for more than gradients, and "
            f"its steps do not follow from {NOISE}; leave one of the two out"
        )
    if method.name == "dp-kvae":
        raise BadInput(
            f"{method.name} asks for sums besides gradients, and its steps do not follow from "
            f"{NOISE}; leave it out, and the noise follows from the budget"
        )


@lru_cache(maxsize=1024)
def _most_steps(
    sample_rate: float, noise: float, budget: Budget, most_steps: int, adjacency: Adjacency
) -> int:
    """How many steps fit; one more than `most_steps` where that many do."""

    def fits(steps: int) -> bool:
        query = PoissonGradients(
            sample_rate=sample_rate,
            steps=steps,
            clip_norm=1.0,
            noise_multiplier=noise,
            expected_batch_size=1.0,
        )
        found = cost_of([query.event], budget.delta, adjacency, coarse=True)
        return found.epsilon <= budget.epsilon

    if fits(most_steps + 1):
        return most_steps + 1
    low, high = 0, most_steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@lru_cache(maxsize=1024)
def _calibrated(batches: Batches, budget: Budget, adjacency: Adjacency) -> dp.DpEvent:
    return calibrate(batches.query, budget, adjacency=adjacency).event
