"""Continual: classes come in tasks, one task after another, and no record of the past is kept.

Class-incremental learning as in Chen, Kerkouche and Fritz (2022), https://arxiv.org/abs/2211.04446.
A learner that can go on (`psg`, `dp-sgd`) takes up each task from what it released before; any
other synthesizer is fitted to each task on its own, and what it released is joined.
Private data are touched by the learner alone. Tasks are disjoint by label, so each may spend the
whole budget on its own records: `privacy/parts.py` says when that holds, and so does the card.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpray import methods, models
from dpray.checkpoints import Checkpoint
from dpray.contract import (
    Classifier,
    GoesOn,
    Method,
    Release,
    Run,
    SharesRecords,
    Synthesizer,
    rebuilt,
)
from dpray.data.records import TrainingData
from dpray.data.shards import shard
from dpray.data.tasks import TaskData, task_data
from dpray.errors import BadInput, CannotResume
from dpray.models.tasks import ByTask, Snapshots
from dpray.privacy.parts import of_classes
from dpray.spec import parse_settings

_PUBLISHED_ORDER = (5, 6, 1, 2, 0, 8, 9, 3, 4, 7)  # of ten classes
_RELEASE = "release"  # the stage under which a finished task is kept

Tasks = tuple[tuple[int, ...], ...]


@methods.register("continual")
@dataclass(frozen=True, kw_only=True)
class Continual:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "psg, dp-sgd or another method on tasks of a few classes, in turn"
    paper: ClassVar[str] = "Chen, Kerkouche and Fritz 2022"
    # One noisy count after every task would have to be paid for, of ever other records.
    needs_public_test: ClassVar[bool] = True

    learner: str = "psg"
    classes_per_task: int = 2
    order: str = ""  # class numbers with commas; empty: as published for ten, else as listed
    learner_settings: str = ""  # "name=value name=value"; what is left out takes its default

    def tasks(self, num_classes: int) -> Tasks:
        """The classes of each task: a public list, fixed before any record is read."""
        if self.classes_per_task < 1 or num_classes % self.classes_per_task:
            raise BadInput(
                f"{num_classes} classes cannot be dealt out to tasks of {self.classes_per_task}: "
                "classes_per_task must divide them"
            )
        if num_classes == self.classes_per_task:
            raise BadInput(
                f"classes_per_task {self.classes_per_task} makes one task of all classes: at "
                f"least two are needed, or run {self.learner} itself"
            )
        order = self._order(num_classes)
        size = self.classes_per_task
        return tuple(order[start : start + size] for start in range(0, num_classes, size))

    def _order(self, num_classes: int) -> tuple[int, ...]:
        if not self.order:
            as_listed = tuple(range(num_classes))
            return _PUBLISHED_ORDER if num_classes == len(_PUBLISHED_ORDER) else as_listed
        words = [word.strip() for word in self.order.split(",")]
        numbers = tuple(int(word) for word in words if word.isdecimal())
        if len(numbers) != len(words) or sorted(numbers) != list(range(num_classes)):
            raise BadInput(
                f"order {self.order!r} must name each of the classes 0 to {num_classes - 1} once, "
                "with commas between them"
            )
        return numbers

    def make_learner(self) -> Method:
        kind = methods.find(self.learner)
        if not _can_learn(kind):
            fit = sorted(name for name, one in methods.table().items() if _can_learn(one))
            raise BadInput(f"{self.learner} cannot be a learner: choose one of {', '.join(fit)}")
        released = typing.get_type_hints(kind.fit)["return"]
        if not hasattr(kind, "go_on") and not issubclass(released, Synthesizer):
            raise BadInput(f"{self.learner} cannot take up new classes, and makes no images")
        learner: Method = kind(**parse_settings(self.learner_settings.split(), kind))
        return learner

    def check(self, data: TrainingData) -> None:
        learner = self.make_learner()
        tasks = self.tasks(data.num_classes)
        if isinstance(learner, GoesOn):
            learner.check_go_on()
        elif self.classes_per_task == 1:
            raise BadInput(
                f"{self.learner} is fitted to each task by itself and needs two classes in it: "
                "raise classes_per_task"
            )
        # Records that are found when first asked for: a check asks for none.
        learner.check(_records(learner, data, tasks[0]))

    def share(self, data: TrainingData, rank: int, size: int) -> TrainingData:
        """As the learner shares records out: its rule goes by the record, so it holds in a task."""
        learner = self.make_learner()
        if isinstance(learner, SharesRecords):
            return learner.share(data, rank, size)
        return shard(data, rank, size)

    def fit(self, data: TrainingData, run: Run) -> Release:
        learner = self.make_learner()
        tasks = self.tasks(data.num_classes)
        releases: list[Release] = []
        for number, classes in enumerate(tasks, 1):
            part = run.part_of(f"task {number}", of_classes(data.numbers_of(classes)))
            release = _kept(part)
            if release is None:
                records = _records(learner, data, classes)
                if isinstance(learner, GoesOn):
                    earlier = releases[-1] if releases else None
                    release = learner.go_on(earlier, classes, records, part)
                else:
                    release = learner.fit(records, part)
                release = replace(release, tasks=tasks[:number])
                _keep(release, part)
            releases.append(release)
            run.facts.update(part.facts)
        if "sampling" in run.facts:
            run.facts["sampling"] = f"within each of {len(tasks)} tasks: {run.facts['sampling']}"
        if isinstance(learner, GoesOn) and not isinstance(releases[-1], Classifier):
            return releases[-1]  # the images of a class stay as its task left them
        return _joined(releases, tasks, data)


def _can_learn(kind: type[Any]) -> bool:
    """Private, and not in need of public data: a task brings none."""
    return kind is not Continual and kind.private and not hasattr(kind, "public_data")


def _records(learner: Method, data: TrainingData, classes: Sequence[int]) -> TaskData:
    return task_data(data, classes, own_classes=not isinstance(learner, GoesOn))


def _keep(release: Release, part: Run) -> None:
    """A finished task is public: it is read back after a crash, and its records stay unread."""
    extra = {"recipe": release.recipe(), "facts": part.facts}
    weights = release.module.state_dict()
    part.checkpoints.save(_RELEASE, Checkpoint(1, weights, part.ledger.head, extra))


def _kept(part: Run) -> Release | None:
    """What the task released, where it was finished before a crash."""
    kept = part.checkpoints.latest(_RELEASE, ledger_heads=part.ledger.heads)
    if kept is None:
        if part.checkpoints.has(_RELEASE):
            raise CannotResume(
                f"what {part.checkpoints.folder.name} released is damaged on the disk, and later "
                "tasks may rest on it; start a new run"
            )
        return None
    part.facts.update(kept.extra["facts"])
    release = rebuilt(kept.extra["recipe"], kept.tensors)
    release.module.to(part.device)
    return release


def _joined(releases: Sequence[Release], tasks: Tasks, data: TrainingData) -> Release:
    """What all tasks released, as one release: the classifier after each, or every generator."""
    first, last = releases[0], releases[-1]
    arguments: dict[str, Any]
    if isinstance(last, Classifier):
        name = "snapshots"
        arguments = {
            "count": len(releases),
            "model": first.model,
            "arguments": dict(first.arguments),
        }
    else:
        name = "by-task"
        parts = [
            {"model": one.model, "arguments": dict(one.arguments), "classes": list(classes)}
            for one, classes in zip(releases, tasks, strict=True)
        ]
        arguments = {"parts": parts}
    module = models.build(name, **arguments)
    assert isinstance(module, ByTask | Snapshots)
    for own, one in zip(module.by_task, releases, strict=True):
        own.load_state_dict(one.module.state_dict())
    device = next(iter(last.module.state_dict().values())).device
    return type(last)(
        model=name,
        arguments=arguments,
        module=module.to(device).eval(),
        class_names=data.class_names,
        shape=data.shape,
        tasks=tasks,
    )
