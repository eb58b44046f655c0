"""G-PATE: teachers vote on the directions in which images should change, one number at a time.

Long et al. (2021), https://arxiv.org/abs/1906.09338. Each record goes to one teacher. A teacher's
gradient by a generated image is projected to a few random public directions, and in each of them it
votes for the bin that its number falls into; the middle of the bin with the most noisy votes is
taken back to pixels, and the generator follows. Every direction of every image is a vote that is
paid for. Departures: gradients are taken at length one, every vote is answered and charged whatever
it says, and teachers are small. On MNIST at epsilon 10 expect a rough image of each class; at
epsilon 1 noise is seven times as loud: half as many votes as the laptop's settings have teachers.
Private data are touched by the teachers, whose votes leave by `noisy_votes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dpray.adversarial.follower import Follower
from dpray.adversarial.teacher_gan import Pupil, TeacherGan
from dpray.checks import above_zero, at_least_one
from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.privacy.queries import PaidQuery
from dpray.privacy.teacher_queries import TeacherVotes
from dpray.privacy.teacher_sums import noisy_votes


@register("g-pate")
@dataclass(frozen=True, kw_only=True)
class GPate(TeacherGan[TeacherVotes]):
    summary: ClassVar[str] = "generator that follows noisy votes on teachers' projected gradients"
    paper: ClassVar[str] = "Long et al. 2021"
    answer: ClassVar[Literal["scores", "gradients"]] = "gradients"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # MNIST at epsilon 10: 50 steps of 30 images are what the budget affords at noise 100.
        # The published teachers are convolutional and have BatchNorm; these have one hidden layer.
        "paper": {
            "teachers": 2000,
            "teacher_hidden": 256,
            "teacher_steps": 1,
            "teacher_lr": 1e-3,
            "teacher_batch": 30,
            "grain": 1,
            "rounds": 50,
            "questions": 30,
            "num_fakes": 30,
            "fits": 1,
            "generator": "conv",
            "latent": 100,
            "hidden": 1024,
        },
    }
    gpu_preset: ClassVar[str] = "paper"

    teacher_steps: int = 5
    rounds: int = 50
    questions: int = 20
    projections: int = 10  # numbers that an image's gradient is cut down to, a vote on each
    bins: int = 10
    reach: float = 2.0  # of the bins, in standard deviations of what a gradient of noise gives
    stride: float = 4.0  # how far an image moves in a round
    fits: int = 20  # steps of the generator in a round
    lr: float = 3e-3

    def check(self, data: TrainingData) -> None:
        super().check(data)
        at_least_one(self, "projections", "fits")
        if self.projections > self.inputs(data):
            raise BadInput(
                f"projections {self.projections} are more than the {self.inputs(data)} pixels that "
                f"teachers see of {data.name}"
            )
        above_zero(self, "reach", "stride")

    def query(self, noise_multiplier: float) -> TeacherVotes:
        return TeacherVotes(
            name="g-pate",
            num_teachers=self.teachers,
            questions_per_step=self.questions * self.projections,
            steps=self.rounds,
            noise_multiplier=noise_multiplier,
            num_options=self.bins,
        )

    def pupil(
        self, generator: nn.Module, paid: PaidQuery[TeacherVotes], data: TrainingData, run: Run
    ) -> Pupil:
        return _BinFollower(self, generator, paid, data, run)


class _BinFollower(Follower):
    """Shapes: n teachers of a block, Q images, D pixels, P projections."""

    def __init__(
        self,
        method: GPate,
        generator: nn.Module,
        paid: PaidQuery[TeacherVotes],
        data: TrainingData,
        run: Run,
    ) -> None:
        super().__init__(method, generator, run, stride=method.stride, fits=method.fits)
        self.paid, self.bins = paid, method.bins
        self.form = (method.questions, method.inputs(data), method.projections)
        # A projection of a vector of length one that points anywhere has this deviation.
        self.reach = method.reach / math.sqrt(method.inputs(data))

    def ask(self, raw_answers: Iterator[Tensor], teachers: Tensor, step: int) -> Tensor:
        matrices = self._matrices(step)
        raw_choices = (self._bins(raw, matrices) for raw in raw_answers)
        return noisy_votes(
            raw_choices, teachers, step, paid=self.paid, key=self.run.key, world=self.run.world
        )

    def directions(self, step: int, noisy_answers: Tensor) -> Tensor:
        """The middles of the bins that won, back in pixels."""
        won = noisy_answers.argmax(1).reshape(self.form[0], self.form[2])
        middles = ((won + 0.5) / self.bins * 2 - 1) * self.reach
        return torch.einsum("qdp,qp->qd", self._matrices(step), middles.float())

    def _matrices(self, step: int) -> Tensor:
        """(Q, D, P): for every image P public directions of length one, at right angles."""
        drawn = torch.randn(self.form, generator=self.run.generator(f"projections {step}"))
        return torch.linalg.qr(drawn).Q

    def _bins(self, raw_gradients: Tensor, matrices: Tensor) -> Tensor:
        """(n, Q * P): the bin that each number falls into; the last ones on a side are open."""
        units = torch.nn.functional.normalize(raw_gradients, dim=-1).nan_to_num()
        numbers = torch.einsum("nqd,qdp->nqp", units, matrices) / self.reach
        bins = ((numbers + 1) / 2 * self.bins).floor().clamp(0, self.bins - 1)
        return bins.long().flatten(1)
