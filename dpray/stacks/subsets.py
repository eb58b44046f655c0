"""The private records by subset: which records a subset holds, and batches of whole subsets.

Private side: sizes, batches and their masks are facts of the records and are never printed.
Shapes: n subsets asked for, P records of the largest of them, C channels, H, W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import cast

import torch
from torch import Tensor

from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.models.generators import coarsened


@dataclass(frozen=True, repr=False)
class SubsetBatch:
    """Some subsets side by side. Rows beyond a subset's own are copies, with a mask of 0.

    A subset is padded with its own last record, so that nothing that padding does, not even an
    overflow, can depend on who is beside it; one without records, with zeros.
    """

    pixels: Tensor  # (n, P, C, H, W)
    labels: Tensor  # (n, P)
    ids: Tensor  # (n, P)
    mask: Tensor  # (n, P) float32

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> list[int]:
        return [int(size) for size in self.mask.sum(1).tolist()]

    def coarser(self, grain: int) -> SubsetBatch:
        """The same records in a coarser grain."""
        flat = coarsened(self.pixels.flatten(0, 1), grain)
        return replace(self, pixels=flat.reshape(*self.labels.shape, *flat.shape[1:]))

    def to(self, device: torch.device | str) -> SubsetBatch:
        return SubsetBatch(*(cast(Tensor, getattr(self, f.name)).to(device) for f in fields(self)))


class Subsets:
    """The records of this worker, grouped by the number of their subset.

    A subset's records are in the order of their ids, so that a batch of it depends on nothing
    but its own records, wherever they were in the dataset.
    """

    def __init__(self, images: Images, numbers: Tensor, num_subsets: int) -> None:
        if len(numbers) != len(images):
            raise BadInput(f"{len(numbers)} subset numbers for {len(images)} records")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < num_subsets:
            raise BadInput(f"subset numbers go from 0 to {num_subsets - 1}; one is outside")
        self.images, self.num_subsets = images, num_subsets
        by_id = images.ids.argsort()
        # The rows, sorted; the pixels stay where they are: a second copy would be all of them.
        self._rows = by_id[numbers[by_id].argsort(stable=True)]
        self.sizes = torch.bincount(numbers, minlength=num_subsets)  # private; (num_subsets,)
        self._starts = self.sizes.cumsum(0) - self.sizes
        self.present = self.sizes.nonzero().flatten()  # numbers with a record here, rising

    def by_size(self, numbers: Tensor) -> Tensor:
        """The same numbers, the largest subsets first: neighbours then need least padding."""
        rising = numbers.sort().values
        return rising[self.sizes[rising].argsort(descending=True, stable=True)]

    def batch(self, numbers: Tensor) -> SubsetBatch:
        """The subsets `numbers`, in that order, padded to the largest of them; at least one row."""
        sizes = self.sizes[numbers]
        longest = int(sizes.max()) if len(numbers) else 0
        places = torch.arange(max(longest, 1))
        own = torch.minimum(places, (sizes[:, None] - 1).clamp(min=0))
        at = (self._starts[numbers][:, None] + own).flatten()
        empty = sizes == 0
        # Where a subset has no record another's stands in for a moment, if there is any.
        rows = self._rows[at.clamp(max=len(self._rows) - 1)] if len(self._rows) else None
        form = (len(numbers), len(places))
        batch = SubsetBatch(
            pixels=_taken(self.images.pixels, rows, form),
            labels=_taken(self.images.labels, rows, form),
            ids=_taken(self.images.ids, rows, form),
            mask=(places < sizes[:, None]).float(),
        )
        if bool(empty.any()):
            for values in (batch.pixels, batch.labels, batch.ids):
                values[empty] = 0
        return batch


def _taken(values: Tensor, rows: Tensor | None, form: tuple[int, int]) -> Tensor:
    if rows is None:
        return values.new_zeros(*form, *values.shape[1:])
    return values[rows].reshape(*form, *values.shape[1:])
