"""A lesson for some teachers of the PATE family: each is a critic taught by a subset of its own.

The teachers of a block are stacked, learn to tell the records of their own subsets from public
generated images, and answer public questions. Private side: weights and answers are functions of a
teacher's own records and of public things, and nothing is noised here.
Shapes: n teachers of a block, M generated images, Q questions, D pixels.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from dpray.errors import BadInput
from dpray.models.teachers import ClassCritic
from dpray.stacks.draws import member_seed
from dpray.stacks.stack import Stack, set_gradients, turned, turned_back
from dpray.stacks.subsets import SubsetBatch


@dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """How every teacher is taught; public. `seed` gives its start and its batches."""

    inputs: int
    num_classes: int
    hidden: int  # units; 0 for a straight line for each class
    steps: int  # in a round
    lr: float
    batch_size: int  # of its own records, and of generated images
    answer: Literal["scores", "gradients"]  # of its score, by the pixels
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.hidden < 0 or min(self.steps, self.batch_size) < 1 or not 0 < self.lr < math.inf:
            raise BadInput(
                f"teachers of {self.hidden} units, {self.steps} steps a round, batches of "
                f"{self.batch_size} and a rate of {self.lr:g}: units must be at least 0, steps "
                "and batches at least 1, the rate above 0"
            )

    def build(self) -> ClassCritic:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            return ClassCritic(self.inputs, self.num_classes, self.hidden)

    def digest(self, *more: str) -> str:
        """What a teacher depends on besides its subset and what was released."""
        said = {name: value for name, value in asdict(self).items() if name != "device"}
        return hashlib.sha256(json.dumps([said, *more], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Lesson:
    """What is shown to all teachers in one round: public."""

    number: int
    fakes: Tensor  # (M, D) generated images, to be told from records
    fake_labels: Tensor
    asked: Tensor  # (Q, D) generated images, to be judged
    asked_labels: Tensor


@dataclass(frozen=True, repr=False)
class TeacherJob:
    """Some teachers and their records: all that a worker gets to see of private things."""

    numbers: tuple[int, ...]
    batch: SubsetBatch
    teachers: Stack
    settings: TeacherSettings


def teach_block(job: TeacherJob, lesson: Lesson) -> tuple[Stack, Tensor]:
    """The teachers after a lesson, and their answers: (n, Q) scores or (n, Q, D) gradients.

    Guarantee: row i depends on the records of subset `job.numbers[i]` and on public things. No
    size of a subset shows in a shape, so that not even rounding depends on who is beside it.
    """
    settings, device = job.settings, torch.device(job.settings.device)
    critic = settings.build().to(device)
    leaves = {k: turned(v.to(device)).clone().requires_grad_() for k, v in job.teachers.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=settings.lr, fused=True)
    scores = vmap(partial(functional_call, critic))
    of_fakes = vmap(partial(functional_call, critic), in_dims=(0, None))
    batch, has_records = job.batch.to(device), (job.batch.mask.sum(1) > 0).float().to(device)
    rows, fake_rows = _rows(job, lesson.number), _fake_rows(settings, lesson)
    member = torch.arange(len(job.numbers), device=device)[:, None]
    for step in range(settings.steps):
        weights = {name: turned_back(leaf) for name, leaf in leaves.items()}
        own = (member, rows[step].to(device))
        real = scores(weights, (batch.pixels[own].flatten(2), batch.labels[own]))
        shown = lesson.fakes[fake_rows[step]].to(device)
        fake = of_fakes(weights, (shown, lesson.fake_labels[fake_rows[step]].to(device)))
        # A sum over members: each one's gradient is that of its own loss.
        loss = (F.softplus(-real).mean(1) * has_records + F.softplus(fake).mean(1)).sum()
        raw_grads = torch.autograd.grad(loss, list(leaves.values()))
        set_gradients(leaves, dict(zip(leaves, raw_grads, strict=True)))
        optimizer.step()
    taught = {name: turned_back(leaf.detach()) for name, leaf in leaves.items()}
    asked = lesson.asked.to(device), lesson.asked_labels.to(device)
    if settings.answer == "scores":
        answers = of_fakes(taught, asked)
    else:
        images = asked[0].expand(len(job.numbers), -1, -1).clone().requires_grad_()
        labels = asked[1].expand(len(job.numbers), -1)
        answers = torch.autograd.grad(scores(taught, (images, labels)).sum(), images)[0]
    return {name: value.contiguous().cpu() for name, value in taught.items()}, answers.cpu()


def _rows(job: TeacherJob, lesson: int) -> Tensor:
    """(steps, n, batch): for every teacher rows of its own records, drawn with replacement."""
    drawn = []
    for number, size in zip(job.numbers, job.batch.sizes, strict=True):
        seed = member_seed(job.settings.seed, number, f"lesson {lesson}")
        rng = torch.Generator().manual_seed(seed)
        form = (job.settings.steps, job.settings.batch_size)
        drawn.append((torch.rand(form, generator=rng) * size).long().clamp(max=max(size - 1, 0)))
    return torch.stack(drawn, 1)


def _fake_rows(settings: TeacherSettings, lesson: Lesson) -> Tensor:
    """(steps, batch) rows of the generated images, the same for all teachers."""
    rng = torch.Generator().manual_seed(member_seed(settings.seed, lesson.number, "fakes"))
    form = (settings.steps, settings.batch_size)
    return torch.randint(len(lesson.fakes), form, generator=rng)
