"""A generator that learns from noisy answers of teachers: the loop of the PATE family.

A round: the generator makes images, all teachers are taught to tell images from their own records
and judge some of them, the answers are noised, and the public side learns from what is left. What
is asked and what is made of the answers is the method's own, its `Pupil`.
Private data are touched by the teachers alone, after all rounds are paid for.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from dpray import models
from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.checks import above_zero, at_least_one, below_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.models.generators import coarse_shape, coarsened
from dpray.privacy.queries import PaidQuery
from dpray.privacy.teacher_queries import TeacherAnswers
from dpray.stacks.lessons import Lesson, TeacherSettings
from dpray.stacks.teachers import Teachers, share_by_teacher, teachers_of

A = TypeVar("A", bound=TeacherAnswers)


class Pupil(ABC):
    """The public side of a round. `modules` and `optimizers` are what a checkpoint holds of it."""

    modules: dict[str, nn.Module]
    optimizers: tuple[torch.optim.Optimizer, ...]

    @abstractmethod
    def ask(self, raw_answers: Iterator[Tensor], teachers: Tensor, step: int) -> Tensor:
        """The noisy sum of the raw answers of the local `teachers`: paid for, and public."""

    @abstractmethod
    def learn(self, step: int, lesson: Lesson, noisy_answers: Tensor) -> None:
        """Moves the generator."""


@dataclass(frozen=True, kw_only=True)
class TeacherGan(ABC, Generic[A]):
    """The settings that all methods of the family have, and their training."""

    private: ClassVar[bool] = True
    can_be_looked_at: ClassVar[bool] = True
    fans_out: ClassVar[bool] = True
    answer: ClassVar[Literal["scores", "gradients"]]
    name: ClassVar[str]

    # A change of a record changes one of them: the more there are, the less noise drowns.
    teachers: int = 1000
    teacher_hidden: int = 0  # units; 0 for a straight line for each class
    teacher_steps: int = 10  # of every teacher in a round
    teacher_lr: float = 1e-2
    teacher_batch: int = 64  # of its own records, and of generated images
    teachers_per_task: int = 250
    grain: int = 2  # pixels a side that teachers see as one
    rounds: int = 50
    questions: int = 100  # generated images that are judged in a round: what is paid for
    num_fakes: int = 500  # generated images that teachers are taught with in a round
    generator: Literal["decoder", "mlp", "conv"] = "decoder"
    latent: int = 16
    hidden: int = 128
    label_scale: float = 3.0  # decoder: of the one-hot label beside unit latents
    lr: float = 1e-3  # of the generator's Adam
    averaging: float = 0.9

    @abstractmethod
    def query(self, noise_multiplier: float) -> A:
        """All questions of a run, at a noise level; the settings alone say how many there are."""

    @abstractmethod
    def pupil(
        self, generator: nn.Module, paid: PaidQuery[A], data: TrainingData, run: Run
    ) -> Pupil:
        """Who learns from the answers."""

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        if not 2 <= self.teachers <= data.num_records:
            raise BadInput(
                f"{self.teachers} teachers for {data.num_records} records of {data.name}: each "
                "needs a subset of its own, so at least 2 and no more than there are records"
            )
        whole = ("teachers_per_task", "grain", "rounds", "questions", "num_fakes", "latent")
        at_least_one(self, *whole, "hidden")
        if self.grain > min(data.shape[1:]):
            raise BadInput(f"grain {self.grain} is more than images of {data.shape} have pixels")
        above_zero(self, "label_scale", "lr")
        below_one(self, "averaging")
        self._teacher_settings(data, 0, "cpu")  # refuses what cannot be taught
        self.query(1.0)

    def share(self, data: TrainingData, rank: int, size: int) -> TrainingData:
        return share_by_teacher(data, rank, size, num_teachers=self.teachers, salt=self._salt)

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        query = run.world.from_first(lambda: run.at_noise(self.query))
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        torch.manual_seed(run.seed)
        generator = models.build(self._model, **self._arguments(data)).to(run.device)
        release = Synthesizer(
            model=self._model,
            arguments=self._arguments(data),
            module=copy.deepcopy(generator).eval(),
            class_names=data.class_names,
            shape=data.shape,
        )
        pupil = self.pupil(generator, paid, data, run)
        teachers = teachers_of(
            data,
            run,
            self._teacher_settings(data, run.seed, str(run.device)),
            num_teachers=self.teachers,
            salt=self._salt,
            grain=self.grain,
            block=self.teachers_per_task,
        )
        self._train(generator, release, pupil, teachers, data, run)
        return release

    def _train(
        self,
        generator: nn.Module,
        release: Synthesizer,
        pupil: Pupil,
        teachers: Teachers,
        data: TrainingData,
        run: Run,
    ) -> None:
        modules = {"generator": generator, "average": release.module, **pupil.modules}
        kept = run.checkpoints.latest("train", ledger_heads=run.ledger.heads)
        first = 0
        if kept is not None:
            unpack(kept.tensors, modules, *pupil.optimizers)
            first = kept.step

        def save(step: int) -> None:
            tensors = pack(modules, *pupil.optimizers)
            run.checkpoints.save("train", Checkpoint(step, tensors, run.ledger.head))

        if first < self.rounds:
            teachers.start(first)
        run.world.barrier()  # nobody writes while another still clears away
        with run.progress(self.name, self.rounds) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, self.rounds):
                lesson = self.lesson(generator, step, data, run)
                noisy = pupil.ask(teachers.answers(lesson), teachers.numbers, step)
                pupil.learn(step, lesson, noisy)
                move_average(release.module, generator, step, self.averaging)
                bar.advance()
                run.look(step + 1, self.rounds, lambda: release)
                # Every rank keeps its own teachers beside the one checkpoint.
                if run.world.from_first(run.checkpoints.due):
                    teachers.keep(step + 1)
                    run.world.barrier()  # a checkpoint counts once every rank kept its teachers
                    save(step + 1)
                    teachers.kept(step + 1)
        save(self.rounds)  # whatever the time: now the teachers go
        run.world.barrier()
        teachers.remove()

    @torch.no_grad()
    def lesson(self, generator: nn.Module, step: int, data: TrainingData, run: Run) -> Lesson:
        """Generated images to learn from and to judge; every class as often as every other."""

        def drawn(count: int, purpose: str) -> tuple[Tensor, Tensor]:
            labels = even_labels(count, data.num_classes)
            return self.judged(generator(labels, run.generator(purpose))).cpu(), labels

        fakes, fake_labels = drawn(self.num_fakes, f"fakes {step}")
        asked, asked_labels = drawn(self.questions, asked_images(step))
        return Lesson(step, fakes, fake_labels, asked, asked_labels)

    def judged(self, images: Tensor) -> Tensor:
        """(N, D): images as teachers see them."""
        return coarsened(images, self.grain).flatten(1)

    def inputs(self, data: TrainingData) -> int:
        """D: how many values of an image a teacher sees."""
        return math.prod(coarse_shape(data.shape, self.grain))

    @property
    def _salt(self) -> str:
        return f"{self.name} teachers"

    def _teacher_settings(self, data: TrainingData, seed: int, device: str) -> TeacherSettings:
        return TeacherSettings(
            inputs=self.inputs(data),
            num_classes=data.num_classes,
            hidden=self.teacher_hidden,
            steps=self.teacher_steps,
            lr=self.teacher_lr,
            batch_size=self.teacher_batch,
            answer=self.answer,
            seed=seed,
            device=device,
        )

    @property
    def _model(self) -> str:
        kinds = {"decoder": "conditional-decoder", "mlp": "mlp-generator", "conv": "conv-generator"}
        return kinds[self.generator]

    def _arguments(self, data: TrainingData) -> dict[str, object]:
        arguments: dict[str, object] = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "latent": self.latent,
            "hidden": self.hidden,
        }
        if self.generator == "decoder":
            arguments |= {"label_scale": self.label_scale, "grain": self.grain}
        return arguments


def even_labels(count: int, num_classes: int) -> Tensor:
    return torch.arange(count) % num_classes


def asked_images(step: int) -> str:
    """The purpose that the images judged in a round are drawn under: drawn again they are equal."""
    return f"asked {step}"
