"""PATE-GAN: teachers vote whether generated images are real, a student learns from the votes.

Jordon, Yoon and van der Schaar (2019), for tables of features there. Each record goes to one
teacher; a generated image gets the noisy votes of all teachers; the generator plays against the
student, which sees generated images alone. Votes are Gaussian (GNMax) and not Laplace, charged
whatever they say. As published it is reported not to learn images, all of which every teacher calls
fake: here a teacher votes for the images that it finds more real than the others it is shown, the
student learns the noisy share of votes, and public noise is put on what is shown; none of it costs.
On MNIST at epsilon 10 expect one rough image of each class and hardly any variety; at epsilon 1
noise is seven times as loud: half as many votes as the laptop's settings have teachers.
Private data are touched by the teachers, whose votes leave by `noisy_votes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.adversarial.teacher_gan import Pupil, TeacherGan, even_labels
from dpray.checks import at_least_one
from dpray.contract import Run
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.teachers import ClassCritic
from dpray.privacy.queries import PaidQuery
from dpray.privacy.teacher_queries import TeacherVotes
from dpray.privacy.teacher_sums import noisy_votes
from dpray.stacks.lessons import Lesson

_FAKE, _REAL = 0, 1  # the options of a vote


@register("pate-gan")
@dataclass(frozen=True, kw_only=True)
class PateGan(TeacherGan[TeacherVotes]):
    summary: ClassVar[str] = "GAN whose critic learns from noisy votes of many teachers"
    paper: ClassVar[str] = "Jordon, Yoon and van der Schaar 2019"
    answer: ClassVar[Literal["scores", "gradients"]] = "scores"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # One teacher for a thousand records of MNIST, a majority of 64 images, and a student
        # step and a generator step for each: it asks far more than so few teachers can answer.
        "paper": {
            "teachers": 60,
            "teacher_hidden": 784,
            "teacher_steps": 1,
            "teacher_lr": 1e-4,
            "judged_by": "score",
            "votes": "majority",
            "jitter": 0.0,
            "grain": 1,
            "rounds": 10_000,
            "questions": 64,
            "num_fakes": 64,
            "memory": 1,
            "student_steps": 1,
            "generator_steps": 1,
            "student_hidden": 784,
            "generator": "mlp",
            "hidden": 3136,
            "lr": 1e-4,
            "lr_student": 1e-4,
        },
    }
    gpu_preset: ClassVar[str] = "paper"

    teacher_steps: int = 5
    questions: int = 200
    # A teacher calls an image real by its score, or by its score above those of the same class.
    judged_by: Literal["comparison", "score"] = "comparison"
    votes: Literal["share", "majority"] = "share"  # what the student learns of them
    jitter: float = 0.3  # of pixels judged: the student hears of what no generator does yet
    memory: int = 5  # rounds whose votes the student learns from
    student_steps: int = 100  # in a round
    # In a round: few, for the student knows the images that were judged and not where they go.
    generator_steps: int = 10
    student_batch: int = 100
    student_hidden: int = 0  # 0 for a straight line for each class, which starts level
    lr_student: float = 1e-3

    def check(self, data: TrainingData) -> None:
        super().check(data)
        at_least_one(self, "memory", "student_steps", "generator_steps", "student_batch")
        if self.student_hidden < 0 or not 0 <= self.jitter < math.inf:
            raise BadInput("student_hidden and jitter must be at least 0")
        if self.judged_by == "comparison" and self.questions < 2 * data.num_classes:
            raise BadInput(
                f"{self.questions} questions are too few to compare images of each of "
                f"{data.num_classes} classes: at least {2 * data.num_classes}, or judged_by=score"
            )
        if not 0 < self.lr_student < math.inf:
            raise BadInput(f"lr_student {self.lr_student:g} must be above 0")

    def query(self, noise_multiplier: float) -> TeacherVotes:
        return TeacherVotes(
            name="pate-gan",
            num_teachers=self.teachers,
            questions_per_step=self.questions,
            steps=self.rounds,
            noise_multiplier=noise_multiplier,
            num_options=2,
        )

    def lesson(self, generator: nn.Module, step: int, data: TrainingData, run: Run) -> Lesson:
        made = super().lesson(generator, step, data, run)
        noise = torch.randn(made.asked.shape, generator=run.generator(f"jitter {step}"))
        return replace(made, asked=(made.asked + self.jitter * noise).clamp(0, 1))

    def pupil(
        self, generator: nn.Module, paid: PaidQuery[TeacherVotes], data: TrainingData, run: Run
    ) -> Pupil:
        return Student(self, generator, paid, data, run)


class Votes(nn.Module):
    """The noisy votes of the last rounds: public, and part of a checkpoint."""

    images: Tensor  # (rounds, Q, D)
    labels: Tensor
    targets: Tensor

    def __init__(self, memory: int, questions: int, inputs: int) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(memory, questions, inputs))
        self.register_buffer("labels", torch.zeros(memory, questions, dtype=torch.long))
        self.register_buffer("targets", torch.zeros(memory, questions))

    def add(self, step: int, images: Tensor, labels: Tensor, targets: Tensor) -> None:
        place = step % len(self.targets)
        self.images[place], self.labels[place], self.targets[place] = images, labels, targets

    def drawn(self, step: int, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Some of the votes that were added up to `step`."""
        rows = min(step + 1, len(self.targets)) * self.targets.shape[1]
        picked = torch.randint(rows, (count,), generator=rng).to(self.targets.device)
        flat = (self.images.flatten(0, 1), self.labels.flatten(), self.targets.flatten())
        return flat[0][picked], flat[1][picked], flat[2][picked]


class Student(Pupil):
    """A critic that learns what teachers said, and the generator that plays against it."""

    def __init__(
        self,
        method: PateGan,
        generator: nn.Module,
        paid: PaidQuery[TeacherVotes],
        data: TrainingData,
        run: Run,
    ) -> None:
        self.method, self.generator, self.paid, self.run = method, generator, paid, run
        self.num_classes, inputs = data.num_classes, method.inputs(data)
        self.critic = ClassCritic(inputs, data.num_classes, method.student_hidden).to(run.device)
        if method.student_hidden == 0:
            for p in self.critic.parameters():
                nn.init.zeros_(p)
        self.votes = Votes(method.memory, method.questions, inputs).to(run.device)
        self.modules = {"student": self.critic, "votes": self.votes}
        self.optimizers = (
            torch.optim.Adam(self.critic.parameters(), lr=method.lr_student, betas=(0.5, 0.9)),
            torch.optim.Adam(generator.parameters(), lr=method.lr, betas=(0.5, 0.9)),
        )

    def ask(self, raw_answers: Iterator[Tensor], teachers: Tensor, step: int) -> Tensor:
        raw_choices = (torch.where(self._judged(raw) > 0, _REAL, _FAKE) for raw in raw_answers)
        return noisy_votes(
            raw_choices, teachers, step, paid=self.paid, key=self.run.key, world=self.run.world
        )

    def _judged(self, raw_scores: Tensor) -> Tensor:
        """(n, Q): what each teacher goes by; a row is made of that teacher's own scores."""
        if self.method.judged_by == "score":
            return raw_scores
        words = F.one_hot(even_labels(raw_scores.shape[1], self.num_classes)).to(raw_scores)
        return raw_scores - raw_scores @ (words / words.sum(0)) @ words.T

    def learn(self, step: int, lesson: Lesson, noisy_answers: Tensor) -> None:
        margins = noisy_answers[:, _REAL] - noisy_answers[:, _FAKE]
        if self.method.votes == "majority":
            targets = (margins > 0).float()
        else:
            # Not cut off at 0 and 1: noise must not move its mean.
            targets = (0.5 + 0.5 * margins / self.method.teachers).float()
        self.votes.add(step, lesson.asked, lesson.asked_labels, targets)
        rng = self.run.generator(f"student {step}")
        for _ in range(self.method.student_steps):
            self._student_step(step, rng)
        for _ in range(self.method.generator_steps):
            self._generator_step(rng)

    def _student_step(self, step: int, rng: torch.Generator) -> None:
        images, labels, targets = self.votes.drawn(step, self.method.student_batch, rng)
        scores = self.critic(images, labels)
        # Cross-entropy, which is linear in its target and so may be given a noisy one.
        loss = (F.softplus(scores) - targets * scores).mean()
        self._step(self.optimizers[0], self.critic, loss)

    def _generator_step(self, rng: torch.Generator) -> None:
        labels = torch.randint(self.num_classes, (self.method.student_batch,), generator=rng)
        images = self.method.judged(self.generator(labels, rng))
        loss = F.softplus(-self.critic(images, labels.to(images.device))).mean()
        self._step(self.optimizers[1], self.generator, loss)

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, module: nn.Module, loss: Tensor) -> None:
        params = list(module.parameters())
        for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
            p.grad = grad
        optimizer.step()
