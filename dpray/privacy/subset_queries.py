"""The query of the methods that draw subsets of the records, and what it costs.

Records are split into subsets by a keyed hash of their ids. A step draws some of the subsets,
and each of those adds one clipped vector. Which event that is follows from how subsets are drawn
and from whether anything remembers the draws; a caller cannot choose the cheaper one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import dp_accounting as dp

from dpray.errors import BadInput, unknown
from dpray.privacy.subsets import Sampling, SubsetsDpEvent

SubsetSampling = Literal["poisson", "one-of-k", "all-subsets"]


@dataclass(frozen=True, kw_only=True)
class SubsetSums:
    """`steps` noisy sums of one clipped vector for each drawn subset.

    Guarantee: a record belongs to one subset, whose vector has norm at most `clip_norm` with it,
    without it and with another in its place; the noise has standard deviation
    `noise_multiplier * clip_norm` in every coordinate. The cost is the same for
    add-or-remove-one and replace-one neighbours.

    `remembers_draws` is whether the vector of a subset may depend on when that subset was drawn
    before, as with an encoder that is trained only when it is drawn. The draws then hide
    nothing, and the query costs what it would if they were published. State that several subsets
    share and private data have touched is covered with "all-subsets" alone.
    """

    name: str = "subset gradients"
    num_subsets: int
    sampling: SubsetSampling
    subsets_per_step: float  # on average; public, the noisy sum is divided by it
    steps: int
    clip_norm: float
    noise_multiplier: float
    remembers_draws: bool
    vectors_per_draw: int  # noised vectors of norm at most clip_norm that one draw gives away

    def __post_init__(self) -> None:
        # What is not a number must not reach an accountant: a NaN can come out as a cost of zero.
        if not 0 <= self.noise_multiplier < math.inf:
            raise BadInput(f"noise multiplier {self.noise_multiplier} must be a number, at least 0")
        if not 0 < self.clip_norm < math.inf:
            raise BadInput(f"clip norm {self.clip_norm} must be above 0 and finite")
        counts = {"num_subsets": 2, "steps": 1, "vectors_per_draw": 1}
        for setting, least in counts.items():
            value = getattr(self, setting)
            if type(value) is not int or value < least:
                raise BadInput(f"{setting} {value} must be a whole number, at least {least}")
        if type(self.remembers_draws) is not bool:
            raise BadInput(f"remembers_draws {self.remembers_draws!r} must be True or False")
        self._check_draws()

    def _check_draws(self) -> None:
        if self.sampling not in get_args(SubsetSampling):
            raise unknown("sampling of subsets", str(self.sampling), get_args(SubsetSampling))
        if not 0 < self.subsets_per_step <= self.num_subsets:
            raise BadInput(
                f"{self.subsets_per_step} subsets per step are out of range: above 0 and at most "
                f"the {self.num_subsets} subsets there are"
            )
        fixed = {"one-of-k": 1, "all-subsets": self.num_subsets}.get(self.sampling)
        if fixed is not None and self.subsets_per_step != fixed:
            raise BadInput(
                f"{self.subsets_per_step} subsets per step do not go with {self.sampling!r}, which "
                f"draws {fixed}; use 'poisson' for another number"
            )

    @property
    def sample_rate(self) -> float:
        """How likely a subset is to be drawn in a step."""
        return self.subsets_per_step / self.num_subsets

    @property
    def expected_subsets(self) -> float:
        """The public number that the noisy sum is divided by."""
        return float(self.subsets_per_step)

    @property
    def bound(self) -> float:
        return self.clip_norm

    @property
    def event(self) -> dp.DpEvent:
        if self.noise_multiplier == 0.0:
            return dp.NonPrivateDpEvent()
        one = SubsetsDpEvent(
            sampling=self._charged_sampling(),
            sample_rate=float(self.sample_rate),
            noise_multiplier=float(self.noise_multiplier),
            vectors_per_draw=self.vectors_per_draw,
        )
        return dp.SelfComposedDpEvent(one, self.steps)

    def _charged_sampling(self) -> Sampling:
        if self.sampling == "all-subsets" or self.sample_rate >= 1.0:
            return "every"
        return "revealed" if self.remembers_draws else self.sampling

    def facts(self) -> dict[str, str | float | int]:
        """What a privacy card says of it."""
        words = {
            "poisson": "Poisson: every subset joins every step on its own, at the sample rate",
            "one-of-k": "one subset joins every step, drawn anew from all of them",
            "revealed": "subsets are drawn at the sample rate; the draws are taken to be known",
            "every": "every subset in every step",
        }
        return {
            "sampling": f"{words[self._charged_sampling()]}; {self.num_subsets} subsets",
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
        }
