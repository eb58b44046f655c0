"""What several tasks released, as one module: nothing is trained here.

`ByTask` holds a generator for each task and hands every label to the one that learnt it.
`Snapshots` holds a classifier as it was after each task and answers with the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpray.errors import BadInput
from dpray.models import build


class ByTask(nn.Module):
    """Generators whose labels are places in the list of their own classes."""

    def __init__(self, parts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.classes = [tuple(part["classes"]) for part in parts]
        self.by_task = nn.ModuleList(build(part["model"], **part["arguments"]) for part in parts)

    def forward(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        rows, drawn = [], []
        for classes, module in zip(self.classes, self.by_task, strict=True):
            is_own = labels.unsqueeze(1) == torch.tensor(classes)
            own = is_own.any(1).nonzero().flatten()
            if len(own):
                rows.append(own)
                drawn.append(module(is_own[own].long().argmax(1), rng))
        if sum(map(len, rows)) != len(labels):
            known = sorted(label for classes in self.classes for label in classes)
            raise BadInput(f"a label is of no task; the classes are {known}")
        images = torch.cat(drawn)
        return images[torch.cat(rows).argsort().to(images.device)]


class Snapshots(nn.Module):
    def __init__(self, count: int, model: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.by_task = nn.ModuleList(build(model, **arguments) for _ in range(count))

    def after(self, task: int) -> nn.Module:
        """The classifier as it was after task `task`, counted from 1."""
        return self.by_task[task - 1]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.by_task[-1](images)
        return logits
