"""Encoders on the disk of the private side: a block of them a file, read in part and in place.

Each file is plain safetensors with a first dimension of encoders; its metadata says whose they
are, and its name is the SHA-256 of what is in it. Files are written whole, readable by their owner
alone, and mapped into memory: a read touches the rows it asks for and nothing else. Any number of
processes may read; a block is written by one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from dpray.errors import BadInput, CannotResume
from dpray.stacks.stack import Stack
from dpray.storage import private_folder, write_whole

_SUFFIX = ".safetensors"
_MAPPED_AT_ONCE = 512  # far below what a system lets a process map


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr)


class _Place(NamedTuple):
    path: Path
    row: int


class EncoderStore:
    """Encoders by subset number. `made_by` is what they depend on besides their subsets
    (`EncoderSettings.digest`): encoders that were made otherwise are dropped, as damaged ones are.
    """

    def __init__(
        self,
        folder: Path,
        *,
        made_by: str = "",
        say: Callable[[str], None] = _say_on_stderr,
        replaceable: bool = True,
        holds: str = "encoders",
    ) -> None:
        self.folder, self.made_by, self.say = folder, made_by, say
        self.holds = holds  # what messages call them: teachers and critics are kept here too
        self.replaceable = replaceable  # whether encoders that are dropped can be made again
        self._places: dict[int, _Place] = {}
        self._verified: set[Path] = set()
        self._mapped: OrderedDict[Path, Stack] = OrderedDict()

    def write(self, numbers: Iterable[int], encoders: Mapping[str, Tensor]) -> None:
        """Adds a block: `numbers[i]` is whose encoder is in row i of every tensor."""
        own = [int(number) for number in numbers]
        if not encoders or any(len(value) != len(own) for value in encoders.values()):
            raise BadInput(
                f"a block of {len(own)} {self.holds} must have as many rows in every tensor"
            )
        tensors = {name: value.detach().cpu().contiguous() for name, value in encoders.items()}
        content = save(tensors, metadata={"numbers": json.dumps(own), "made_by": self.made_by})
        path = private_folder(self.folder) / f"{hashlib.sha256(content).hexdigest()}{_SUFFIX}"
        write_whole(path, content)
        self._enter(path, own)

    def present(self) -> set[int]:
        """The subsets whose encoders are here, whole. Says so when damaged ones are dropped."""
        if not self.folder.exists():
            return set()
        dropped = 0
        # By name, so that of two files with the same encoder all processes take the same one.
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            if path in self._verified:
                continue
            numbers = self._numbers(path)
            if numbers is None and not self.replaceable:
                raise CannotResume(
                    f"a file of this run's {self.holds} is damaged, and they cannot be made again "
                    "from their start; start a new run"
                )
            if numbers is None:
                path.unlink(missing_ok=True)
                dropped += 1
            else:
                self._enter(path, numbers)
        if dropped:
            self.say(
                f"{dropped} files of {self.holds} are damaged or of other settings: "
                f"their {self.holds} have to be trained again"
            )
        return set(self._places)

    def read(self, numbers: Iterable[int]) -> Stack:
        """The encoders of `numbers`, stacked in that order."""
        places = self._find([int(number) for number in numbers])
        blocks = {path: self._block(path) for path in {place.path for place in places}}
        first = next(iter(blocks.values()))
        return {
            name: torch.stack([blocks[place.path][name][place.row] for place in places])
            for name in first
        }

    def remove(self) -> None:
        """Ends the store and removes its files, also those that a killed writer left half done."""
        self._places.clear()
        self._verified.clear()
        self._mapped.clear()
        if not self.folder.exists():
            return
        for path in [*self.folder.glob(f"*{_SUFFIX}"), *self.folder.glob(f".*{_SUFFIX}.*.partial")]:
            path.unlink(missing_ok=True)
        remove_empty(self.folder)

    def _enter(self, path: Path, numbers: list[int]) -> None:
        self._verified.add(path)
        for row, number in enumerate(numbers):
            self._places.setdefault(number, _Place(path, row))

    def _numbers(self, path: Path) -> list[int] | None:
        """Whose encoders a file holds, or None where it is not what was written."""
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return []  # somebody else dropped it
        if digest != path.stem:
            return None
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        if metadata["made_by"] != self.made_by:
            return None
        numbers: list[int] = json.loads(metadata["numbers"])
        return numbers

    def _find(self, numbers: list[int]) -> list[_Place]:
        if not numbers:
            raise BadInput(f"a read of no {self.holds}; ask for at least one")
        if not all(number in self._places for number in numbers):
            self.present()  # another process may have written them since
        if any(number not in self._places for number in numbers):
            raise BadInput(f"{self.holds} that were asked for are not there")  # how many is secret
        return [self._places[number] for number in numbers]

    def _block(self, path: Path) -> Stack:
        """The tensors of a file, mapped: their values are read from the disk as they are used."""
        block = self._mapped.get(path)
        if block is None:
            with safe_open(path, framework="pt") as file:
                block = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._mapped[path] = block
            if len(self._mapped) > _MAPPED_AT_ONCE:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(path)
        return block


def remove_empty(folder: Path) -> None:
    """Removes a folder unless something is in it, or another process was quicker."""
    with contextlib.suppress(OSError):
        folder.rmdir()
