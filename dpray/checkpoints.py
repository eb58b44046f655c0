"""Checkpoints of a run: weights, optimiser, step and ledger head, atomic and checksummed.

They live in the private workdir. Each is one safetensors file whose name carries the step and
whose last line of defence is a SHA-256 beside it; the last two are kept, so a file that was
cut on the disk costs one interval of work and no privacy: replayed steps are the same steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from dpray.errors import BadInput, CannotResume
from dpray.storage import private_folder, write_whole
from dpray.world import SOLO, World

_KEPT = 2
_SECONDS_BETWEEN = 10.0


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _seconds_between() -> float:
    word = os.environ.get("DPRAY_CHECKPOINT_SECONDS")
    if word is None:
        return _SECONDS_BETWEEN
    try:
        return float(word)
    except ValueError:
        raise BadInput(f"DPRAY_CHECKPOINT_SECONDS is {word!r}: expected seconds") from None


@dataclass(frozen=True)
class Checkpoint:
    step: int  # steps done: the next one to run has this number
    tensors: Mapping[str, Tensor]
    ledger_head: str
    extra: Mapping[str, Any] = field(default_factory=dict)  # public bookkeeping; JSON


class Checkpoints:
    """The checkpoints of one run, by stage. Rank 0 writes and reads; the others are told."""

    def __init__(
        self, folder: Path, *, world: World = SOLO, say: Callable[[str], None] = _say_on_stderr
    ) -> None:
        self.folder = folder
        self.world = world
        self.say = say
        self.seconds = _seconds_between()
        self.saved_at = time.monotonic()

    def within(self, name: str) -> Checkpoints:
        """Checkpoints of one task of the run, apart from those of the others."""
        if self.world.is_first:
            private_folder(self.folder)
        return Checkpoints(self.folder / name, world=self.world, say=self.say)

    def due(self) -> bool:
        """Whether enough work was done since the last one to be worth a checkpoint."""
        return self.world.is_first and time.monotonic() - self.saved_at >= self.seconds

    def save(self, stage: str, checkpoint: Checkpoint) -> None:
        if not self.world.is_first:
            return
        private_folder(self.folder)
        meta = {
            "step": str(checkpoint.step),
            "ledger_head": checkpoint.ledger_head,
            "extra": json.dumps(dict(checkpoint.extra)),
        }
        tensors = {k: v.detach().cpu().contiguous() for k, v in checkpoint.tensors.items()}
        content = save(tensors, metadata=meta)
        path = self.folder / f"{stage}-{checkpoint.step:09d}.safetensors"
        write_whole(path, hashlib.sha256(content).digest() + content)
        for old in self._files(stage)[:-_KEPT]:
            old.unlink(missing_ok=True)
        self.saved_at = time.monotonic()

    def latest(self, stage: str, *, ledger_heads: Sequence[str]) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None. Says so when a damaged one is passed by."""
        return self.world.from_first(lambda: self._read_latest(stage, ledger_heads))

    def has(self, stage: str) -> bool:
        """Whether there is a checkpoint of this stage, whole or not."""
        return self.world.from_first(lambda: bool(self._files(stage)))

    def _read_latest(self, stage: str, ledger_heads: Sequence[str]) -> Checkpoint | None:
        for path in reversed(self._files(stage)):
            content = path.read_bytes()
            digest, body = content[:32], content[32:]
            if hashlib.sha256(body).digest() != digest:
                self.say(f"checkpoint {path.name} is damaged: going back to the one before it")
                continue
            header_size = int.from_bytes(body[:8], "little")
            meta = json.loads(body[8 : 8 + header_size])["__metadata__"]
            # The ledger may have grown since; it must still hold the line of that moment.
            if ledger_heads and meta["ledger_head"] not in ledger_heads:
                raise CannotResume(
                    f"checkpoint {path.name} was made under another ledger: "
                    "the run cannot be taken up again"
                )
            return Checkpoint(
                int(meta["step"]), load(body), meta["ledger_head"], json.loads(meta["extra"])
            )
        return None

    def _files(self, stage: str) -> list[Path]:
        pattern = re.compile(rf"{re.escape(stage)}-\d{{9}}\.safetensors")
        if not self.folder.exists():
            return []
        return sorted(p for p in self.folder.iterdir() if pattern.fullmatch(p.name))


def pack(modules: Mapping[str, nn.Module], *optimizers: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flat tensors of modules and of optimisers' states, for a checkpoint."""
    tensors = {
        f"{name}/{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for prefix, optimizer in zip(_prefixes(optimizers), optimizers, strict=True):
        for index, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                # A None or a plain number is kept as a tensor too: safetensors holds nothing else.
                if value is not None:
                    tensors[f"{prefix}{index}/{key}"] = torch.as_tensor(value)
    return tensors


def unpack(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    *optimizers: torch.optim.Optimizer,
) -> None:
    """Puts what `pack` took back into the same modules and optimisers."""
    for name, module in modules.items():
        prefix = f"{name}/"
        state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        module.load_state_dict(state)
    for prefix, optimizer in zip(_prefixes(optimizers), optimizers, strict=True):
        kept: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(prefix):
                index, slot = key.removeprefix(prefix).split("/", 1)
                kept.setdefault(int(index), {})[slot] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})


def _prefixes(optimizers: Sequence[torch.optim.Optimizer]) -> list[str]:
    """The first is `optimizer`: most have one."""
    return [f"optimizer{number or ''}/" for number in range(len(optimizers))]
