"""What may be asked of teachers, each taught by records of its own, and what the answers cost.

Records go to teachers by a keyed hash of their ids, one teacher each, and every teacher answers
every question, so nothing amplifies. A record may change all that its teacher says, and nothing
else. Costs here never depend on the answers: a cost that did would itself be private.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import dp_accounting as dp

from dpray.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class TeacherAnswers(ABC):
    """`steps` times noisy sums of the teachers' answers to `questions_per_step` questions.

    Guarantee: one record, added, removed or replaced, moves the sum of the answers to a question
    by at most `sensitivity`; the noise has standard deviation `noise_multiplier * sensitivity` in
    every coordinate. The answers to all questions are as many Gaussians, whatever is asked next.
    What is made of a noisy sum, as the largest of its counts or its signs, is free. For
    replace-one neighbours, which move no more, the ledger charges twice the shift.
    """

    name: str
    num_teachers: int
    questions_per_step: int
    steps: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        # What is not a number must not reach an accountant: a NaN can come out as a cost of zero.
        if not 0 <= self.noise_multiplier < math.inf:
            raise BadInput(f"noise multiplier {self.noise_multiplier} must be a number, at least 0")
        for setting, least in self.least().items():
            value = getattr(self, setting)
            if type(value) is not int or value < least:
                raise BadInput(f"{setting} {value} must be a whole number, at least {least}")

    def least(self) -> dict[str, int]:
        """The whole numbers of the query and the least that each may be."""
        return {"num_teachers": 2, "questions_per_step": 1, "steps": 1}

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """How far one teacher can move the sum of the answers to a question."""

    @property
    def noise_std(self) -> float:
        return self.noise_multiplier * self.sensitivity

    @property
    def bound(self) -> float:
        return self.sensitivity

    @property
    def event(self) -> dp.DpEvent:
        if self.noise_multiplier == 0.0:
            return dp.NonPrivateDpEvent()
        one = dp.GaussianDpEvent(self.noise_multiplier)
        return dp.SelfComposedDpEvent(one, self.steps * self.questions_per_step)

    def facts(self) -> dict[str, str | float | int]:
        """What a privacy card says of it."""
        return {
            "sampling": (
                f"none: each of {self.num_teachers} teachers answers all of "
                f"{self.questions_per_step} questions a step"
            ),
            "steps": self.steps,
            "clip_norm": self.sensitivity,
            "noise_multiplier": self.noise_multiplier,
        }


@dataclass(frozen=True, kw_only=True)
class TeacherVotes(TeacherAnswers):
    """A teacher gives its vote to one of `num_options` options: GNMax of Papernot et al. 2018.

    Guarantee: a vote that goes to another option takes one from one count and adds one to
    another, which moves the counts by the root of two.
    """

    num_options: int

    def least(self) -> dict[str, int]:
        return {**super().least(), "num_options": 2}

    @property
    def sensitivity(self) -> float:
        return math.sqrt(2.0)


@dataclass(frozen=True, kw_only=True)
class TeacherSigns(TeacherAnswers):
    """A teacher gives `num_signs` coordinates of a vector a sign: TopAgg of Wang et al. 2021.

    Guarantee: such a vector has norm root of `num_signs`, and another one in its place, at worst
    its opposite, lies twice that far away.
    """

    num_signs: int

    def least(self) -> dict[str, int]:
        return {**super().least(), "num_signs": 1}

    @property
    def sensitivity(self) -> float:
        return 2.0 * math.sqrt(self.num_signs)
