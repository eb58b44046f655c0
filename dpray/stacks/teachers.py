"""The teachers of a worker over the rounds of a training: taught and asked as pool tasks.

All of them are taught in every round, so what a teacher knows depends on its own records and on
what was released. Private side: they stay in memory and, for checkpoints, in the private folder.
`privacy.teacher_sums` bounds their answers and adds the noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dpray.contract import Run
from dpray.data.records import Images, TrainingData
from dpray.data.splits import partition
from dpray.models.generators import coarsened
from dpray.pool import Pool
from dpray.stacks.lessons import Lesson, TeacherJob, TeacherSettings, teach_block
from dpray.stacks.stack import Stack, repeated
from dpray.stacks.states import Frozen
from dpray.stacks.subsets import Subsets
from dpray.stacks.versions import EncoderVersions


class Teachers:
    """A critic for each of `numbers`, which are the subsets that this worker holds: public."""

    def __init__(
        self,
        subsets: Subsets,
        numbers: Tensor,
        versions: EncoderVersions,
        pool: Pool,
        settings: TeacherSettings,
        block: int,
    ) -> None:
        self.subsets, self.numbers, self.pool = subsets, numbers, pool
        self.settings, self.block = settings, block
        self._saved = Frozen(versions)
        self._weights: Stack = {}

    def start(self, done: int) -> None:
        """As the checkpoint after `done` rounds left them, or fresh."""
        self._saved.start(done)
        if done and len(self.numbers):
            self._weights = self._saved.read(self.numbers)
        else:
            self._weights = repeated(self.settings.build(), len(self.numbers))

    def answers(self, lesson: Lesson) -> Iterator[Tensor]:
        """Teaches all teachers, block by block, and gives the raw answers of each block."""
        # By number, which is public: how large subsets are decides nothing.
        blocks = torch.arange(len(self.numbers)).split(self.block) if len(self.numbers) else ()

        def jobs() -> Iterator[TeacherJob]:
            for rows in blocks:
                numbers = self.numbers[rows]
                own = {name: value[rows] for name, value in self._weights.items()}
                batch = self.subsets.batch(numbers)
                yield TeacherJob(tuple(numbers.tolist()), batch, own, self.settings)

        gpus = 0 if self.settings.device == "cpu" else 1
        results = self.pool.map(
            teach_block, jobs(), shared=lesson, gpus=gpus, label="teachers", quiet=True
        )
        for rows, (taught, answers) in zip(blocks, results, strict=True):
            for name, value in taught.items():
                self._weights[name][rows] = value
            yield answers

    def keep(self, done: int) -> None:
        """Called before the checkpoint after `done` rounds is written."""
        if len(self.numbers):
            self._saved.versions.write(self.numbers, self._weights, done)

    def kept(self, done: int) -> None:
        """Called after it was written."""
        self._saved.kept(done)

    def remove(self) -> None:
        self._saved.versions.remove()


def teachers_of(
    data: TrainingData,
    run: Run,
    settings: TeacherSettings,
    *,
    num_teachers: int,
    salt: str,
    grain: int,
    block: int,
) -> Teachers:
    """The teachers of this rank, which see its records in a coarser grain. Reads records."""
    private = data.private
    coarse = Images(coarsened(private.pixels, grain), private.labels, private.ids)
    subsets = Subsets(coarse, partition(private.ids, num_teachers, salt), num_teachers)
    made_by = settings.digest(data.fingerprint, salt, str(num_teachers), str(grain))
    versions = EncoderVersions(
        run.workdir / "teachers", made_by=made_by, say=run.checkpoints.say, holds="teachers"
    )
    numbers = torch.arange(run.world.rank, num_teachers, run.world.size)
    return Teachers(subsets, numbers, versions, run.pool, settings, block)


def share_by_teacher(
    data: TrainingData, rank: int, size: int, *, num_teachers: int, salt: str
) -> TrainingData:
    """Whole subsets, dealt out in turn: a teacher and its records are with one rank."""
    if size == 1:
        return data
    mine = partition(data.private.ids, num_teachers, salt) % size == rank
    return replace(data, private=data.private[mine])
