"""The records of one task: those whose label is among its classes, as training data of its own.

Which rows they are is private, and is looked up when a record is first asked for: a method that
has not paid yet can be given such data. How many they are is never read either. `num_records` is
the public number that sample rates are planned with: an even share of all records for each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpray.data.records import Images, TrainingData


@dataclass(frozen=True)
class TaskData(TrainingData):
    """Not of consecutive rows: what is kept by block (`private_features`) is not for it."""

    image_shape: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.image_shape  # known without looking at a record


def task_data(data: TrainingData, classes: Sequence[int], *, own_classes: bool) -> TaskData:
    """The records of `classes`; with `own_classes` no other class is listed, and labels are
    places in `classes`, else labels and the list of classes stay those of `data`.

    Guarantee: record-local. Whether a record is in it depends on its own label alone.
    """
    names = tuple(data.class_names[label] for label in classes) if own_classes else data.class_names
    words = f"{'own' if own_classes else 'among all'} {','.join(map(str, classes))}"
    return TaskData(
        name=data.name,
        private=_Chosen(data.private, classes, renumbered=own_classes),
        num_records=max(1, round(data.num_records * len(classes) / data.num_classes)),
        class_names=names,
        fingerprint=f"{data.fingerprint}/classes {words}",
        image_shape=data.shape,
    )


class _Chosen(Images):
    """The images with one of `classes` as their label, found when they are first needed."""

    whole: Images
    classes: tuple[int, ...]
    renumbered: bool

    def __init__(self, whole: Images, classes: Sequence[int], *, renumbered: bool) -> None:
        # Not by assignment: the class above is frozen.
        vars(self).update(whole=whole, classes=tuple(classes), renumbered=renumbered)

    @cached_property
    def _rows(self) -> Tensor:
        return torch.isin(self.whole.labels, torch.tensor(self.classes)).nonzero().flatten()

    @cached_property
    def pixels(self) -> Tensor:
        return self.whole.pixels[self._rows]

    @cached_property
    def labels(self) -> Tensor:
        own = self.whole.labels[self._rows]
        if not self.renumbered:
            return own
        places = torch.zeros(max(self.classes) + 1, dtype=own.dtype)
        places[torch.tensor(self.classes)] = torch.arange(len(self.classes), dtype=own.dtype)
        return places[own]

    @cached_property
    def ids(self) -> Tensor:
        return self.whole.ids[self._rows]
