"""DataLens: teachers say which way images should change, by the signs of a few pixels each.

Wang et al. (2021), https://arxiv.org/abs/2103.11109. Each record goes to one teacher. A teacher's
gradient by a generated image is cut down to the signs of its largest coordinates; the noisy sum of
these, where it is large, is the direction in which that image moves, and the generator follows.
Departures: signs are not drawn at random, teachers are small, and the cost is that of the Gaussian
whatever the votes. On MNIST at epsilon 10 expect one rough image of each class and little variety;
at epsilon 1 noise is seven times as loud: more than all teachers of the laptop's settings together.
Private data are touched by the teachers, whose signs leave by `noisy_sign_sums`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from dpray.adversarial.follower import Follower
from dpray.adversarial.teacher_gan import Pupil, TeacherGan
from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.privacy.queries import PaidQuery
from dpray.privacy.teacher_queries import TeacherSigns
from dpray.privacy.teacher_sums import noisy_sign_sums


@register("datalens")
@dataclass(frozen=True, kw_only=True)
class DataLens(TeacherGan[TeacherSigns]):
    summary: ClassVar[str] = "generator that follows noisy signs of teachers' gradients"
    paper: ClassVar[str] = "Wang et al. 2021"
    answer: ClassVar[Literal["scores", "gradients"]] = "gradients"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # MNIST at epsilon 10: 109 steps of 15 images are what the budget affords at noise 800.
        # The published teachers are convolutional and have BatchNorm; these have one hidden layer.
        "paper": {
            "teachers": 4000,
            "teacher_hidden": 256,
            "teacher_steps": 2,
            "teacher_lr": 1e-3,
            "teacher_batch": 15,
            "grain": 1,
            "rounds": 109,
            "questions": 15,
            "num_fakes": 15,
            "signs": 300,
            "threshold": 0.2,
            "stride": 1e-3,
            "fits": 1,
            "generator": "conv",
            "latent": 50,
            "hidden": 1024,
        },
    }
    gpu_preset: ClassVar[str] = "paper"

    teacher_steps: int = 5
    rounds: int = 50
    questions: int = 20
    signs: int = 30  # k: coordinates of a gradient that a teacher gives away
    threshold: float = 0.3  # share of the teachers below which a coordinate stays as it is
    stride: float = 0.1  # how far a pixel moves in a round
    fits: int = 20  # steps of the generator in a round
    lr: float = 3e-3

    def check(self, data: TrainingData) -> None:
        super().check(data)
        if self.fits < 1:
            raise BadInput(f"fits {self.fits} must be at least 1")
        if not 0 < self.stride < math.inf or not 0 <= self.threshold < math.inf:
            raise BadInput("stride must be above 0, and threshold at least 0")
        if self.signs > self.inputs(data):
            raise BadInput(
                f"signs {self.signs} are more than the {self.inputs(data)} pixels that teachers "
                f"see of {data.name}; choose fewer, or a smaller grain"
            )

    def query(self, noise_multiplier: float) -> TeacherSigns:
        return TeacherSigns(
            name="datalens",
            num_teachers=self.teachers,
            questions_per_step=self.questions,
            steps=self.rounds,
            noise_multiplier=noise_multiplier,
            num_signs=self.signs,
        )

    def pupil(
        self, generator: nn.Module, paid: PaidQuery[TeacherSigns], data: TrainingData, run: Run
    ) -> Pupil:
        return _SignFollower(self, generator, paid, data, run)


class _SignFollower(Follower):
    def __init__(
        self,
        method: DataLens,
        generator: nn.Module,
        paid: PaidQuery[TeacherSigns],
        data: TrainingData,
        run: Run,
    ) -> None:
        super().__init__(method, generator, run, stride=method.stride, fits=method.fits)
        self.paid, self.dimension = paid, method.inputs(data)
        self.least = method.threshold * method.teachers

    def ask(self, raw_answers: Iterator[Tensor], teachers: Tensor, step: int) -> Tensor:
        return noisy_sign_sums(
            raw_answers,
            teachers,
            step,
            dimension=self.dimension,
            paid=self.paid,
            key=self.run.key,
            world=self.run.world,
        )

    def directions(self, step: int, noisy_answers: Tensor) -> Tensor:
        return noisy_answers.sign() * (noisy_answers.abs() > self.least)
