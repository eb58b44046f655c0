"""Encoders as they change over a training: every version is a store of its own, the newest counts.

A version is named by the step it is made for; 0 is stage 1. A version may hold some encoders only:
the others are then those of the versions before it. Private side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from dpray.errors import CannotResume
from dpray.stacks.stack import Stack
from dpray.stacks.store import EncoderStore, remove_empty


class EncoderVersions:
    def __init__(
        self,
        folder: Path,
        *,
        made_by: str,
        say: Callable[[str], None],
        holds: str = "encoders",
    ) -> None:
        self.folder, self.made_by, self.say, self.holds = folder, made_by, say, holds
        found = (re.fullmatch(r"version-(\d+)", path.name) for path in folder.glob("version-*"))
        self._stores = {int(match[1]): self._store(int(match[1])) for match in found if match}
        self._newest: dict[int, int] | None = None  # subset number -> version; None: look again

    def at(self, version: int) -> EncoderStore:
        """The store of one version, new or not. What is written there has to be told of."""
        self._newest = None
        return self._stores.setdefault(version, self._store(version))

    def read(self, numbers: Tensor) -> Stack:
        """The newest encoders of `numbers`, stacked in that order."""
        newest = self._look() if self._newest is None else self._newest
        wanted = numbers.tolist()
        if any(number not in newest for number in wanted):
            raise CannotResume(f"{self.holds} of this run are gone from its private folder")
        versions = torch.tensor([newest[number] for number in wanted])
        present = versions.unique().tolist()
        if len(present) == 1:
            return self._stores[present[0]].read(wanted)
        whole: Stack = {}
        for version in present:
            rows = (versions == version).nonzero().flatten()
            for name, value in self._stores[version].read(numbers[rows].tolist()).items():
                if name not in whole:
                    whole[name] = value.new_empty(len(wanted), *value.shape[1:])
                whole[name][rows] = value
        return whole

    def write(self, numbers: Tensor, encoders: Mapping[str, Tensor], version: int) -> None:
        self.at(version).write(numbers.tolist(), encoders)

    def forget_after(self, version: int) -> None:
        """Removes later versions: those of an attempt that is replayed from here."""
        for later in [v for v in self._stores if v > version]:
            self._stores.pop(later).remove()
        self._newest = None

    def prune(self, version: int) -> None:
        """Removes what nobody who goes back no further than to `version` can need."""
        held: set[int] = set()
        for older in sorted((v for v in self._stores if v <= version), reverse=True):
            own = self._stores[older].present()
            if own <= held:
                self._stores.pop(older).remove()
            held |= own
        self._newest = None

    def remove(self) -> None:
        self.forget_after(-1)
        remove_empty(self.folder)

    def _store(self, version: int) -> EncoderStore:
        folder = self.folder / f"version-{version:09d}"
        return EncoderStore(
            folder,
            made_by=self.made_by,
            say=self.say,
            replaceable=version == 0,
            holds=self.holds,
        )

    def _look(self) -> dict[int, int]:
        newest: dict[int, int] = {}
        for version in sorted(self._stores):
            newest.update(dict.fromkeys(self._stores[version].present(), version))
        self._newest = newest
        return newest
