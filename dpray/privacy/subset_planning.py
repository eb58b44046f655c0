"""Choosing how to draw subsets: what each way costs, and how much signal it leaves.

The noise of a step is the same however many subsets share it, and a rarer draw hides better.
Which of the two wins is not obvious, so every choice is calibrated, by the same search that a
run uses, and compared by one number: signal over noise, accumulated over the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpray.errors import BadInput
from dpray.privacy.accounting import Budget, cost_of
from dpray.privacy.planning import calibrate
from dpray.privacy.subset_queries import SubsetSampling, SubsetSums

GRADIENTS_IN_ALL = 75_000  # of subsets: about the same work for every choice
FEWEST_STEPS, MOST_STEPS = 30, 20_000  # what a model can learn in, and what anybody waits for


@dataclass(frozen=True)
class SubsetPlan:
    """A query that draws subsets, and what it costs."""

    query: SubsetSums
    epsilon: float

    @property
    def accumulated_signal(self) -> float:
        """Signal over noise of all steps together, where all subsets pull the same way.

        Signal adds up over the steps, independent noise as its square root.
        """
        return math.sqrt(self.query.steps) * self._signal

    def step_signal(self, num_parameters: int) -> float:
        """The norm of one step's signal at its largest over that of its noise."""
        return self._signal / math.sqrt(num_parameters)

    @property
    def _signal(self) -> float:
        return self.query.subsets_per_step / self.query.noise_multiplier


def subset_choices(
    num_subsets: int,
    *,
    sampling: SubsetSampling | None = None,
    subsets_per_step: float | None = None,
) -> list[tuple[SubsetSampling, float]]:
    """Ways to draw from `num_subsets` worth comparing: sampling and subsets a step.

    Poisson draws 1, 10, 100 and so on, a tenth and a quarter of the subsets. `sampling` and
    `subsets_per_step` keep the ways that match; Poisson draws any number it is asked for.
    """
    if num_subsets < 2:
        raise BadInput(f"{num_subsets} subsets are too few to draw from: at least 2")
    counts: set[float] = {1, max(num_subsets // 10, 1), max(num_subsets // 4, 1)}
    power = 10
    while power < num_subsets // 10:
        counts.add(power)
        power *= 10
    if subsets_per_step is not None and (sampling == "poisson" or subsets_per_step < num_subsets):
        counts = {subsets_per_step}  # all of them by a Poisson draw is but "all-subsets"
    choices: list[tuple[SubsetSampling, float]] = [
        ("one-of-k", 1),
        *(("poisson", count) for count in sorted(counts)),
        ("all-subsets", num_subsets),
    ]
    return [
        (way, count)
        for way, count in choices
        if sampling in (None, way) and subsets_per_step in (None, count)
    ]


def default_steps(subsets_per_step: float) -> int:
    """As many steps as make `GRADIENTS_IN_ALL`, within what makes sense."""
    return min(max(round(GRADIENTS_IN_ALL / subsets_per_step), FEWEST_STEPS), MOST_STEPS)


def plan_subsets(
    *,
    num_subsets: int,
    sampling: SubsetSampling,
    subsets_per_step: float,
    steps: int,
    remembers_draws: bool,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
) -> SubsetPlan:
    """The least noise for `epsilon`, or the epsilon of `noise_multiplier`: give one of them.

    Guarantee: the planned query costs at most the plan's epsilon, which is at most `epsilon`, for
    add-or-remove-one and replace-one neighbours alike, on the conditions of `SubsetSums`.
    """

    def query(noise: float) -> SubsetSums:
        return SubsetSums(
            num_subsets=num_subsets,
            sampling=sampling,
            subsets_per_step=subsets_per_step,
            steps=steps,
            clip_norm=1.0,
            noise_multiplier=noise,
            remembers_draws=remembers_draws,
            vectors_per_draw=1,
        )

    if (epsilon is None) == (noise_multiplier is None):
        raise BadInput("give one of epsilon and noise multiplier, and leave the other out")
    if noise_multiplier is None:
        assert epsilon is not None
        if not math.isfinite(epsilon):
            raise BadInput(f"epsilon {epsilon:g} is out of range: it must be finite and above 0")
        found = calibrate(query, Budget(epsilon, delta))
    else:
        if not 0.01 <= noise_multiplier < math.inf:
            raise BadInput(
                f"noise multiplier {noise_multiplier:g} is out of range: finite, at least 0.01"
            )
        found = query(noise_multiplier)
    return SubsetPlan(found, cost_of([found.event], delta).epsilon)
