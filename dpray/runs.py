"""Where a run lives on disk: one folder with a public side and a private side.

    runs/<run id>/spec.json, result.json, card.json, card.txt, picture.png, release/
    runs/<run id>/samples.png    where the release is a synthesizer
    runs/<run id>/private/    owner-only: the key, the ledger, checkpoints

The private side loses its key and its checkpoints when the run ends well; the ledger stays.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpray.data.folders import home
from dpray.data.words import dataset_name
from dpray.errors import BadInput, CannotResume, LedgerDamaged
from dpray.privacy.noise import RunKey
from dpray.spec import RunSpec
from dpray.storage import private_folder, write_whole

_SECONDS_TO_WAIT = 30.0


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def key(self) -> Path:
        return self.private / "key"

    @property
    def ledger(self) -> Path:
        return self.private / "ledger.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.private / "checkpoints"

    @property
    def release(self) -> Path:
        return self.path / "release"

    @property
    def picture(self) -> Path:
        return self.path / "picture.png"

    @property
    def samples(self) -> Path:
        return self.path / "samples.png"

    @property
    def is_finished(self) -> bool:
        return (self.path / "result.json").exists()

    def has_ledger(self) -> bool:
        """Whether the run got as far as its ledger; what an earlier stop left is cleared away.

        A ledger is there once its head is: before that nothing can have been charged.
        """
        head = self.ledger.with_suffix(".head")
        if self.ledger.exists() and head.exists():
            return True
        if head.exists() or self.checkpoints.exists():
            raise LedgerDamaged(f"the ledger of run {self.run_id} is gone: it cannot go on")
        shutil.rmtree(self.private, ignore_errors=True)
        private_folder(self.private)
        return False

    def read_spec(self) -> RunSpec:
        return RunSpec.read(self.path / "spec.json")

    def write_json(self, name: str, value: Any) -> None:
        write_whole(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    @contextmanager
    def held(self, say: Callable[[str], None]) -> Iterator[None]:
        """Keeps a second process out of this run for as long as the block runs.

        A worker that outlives its killed driver for a moment is waited for; the lock goes with
        the process that holds it, however that ends.
        """
        private_folder(self.private)
        with open(self.path / "lock", "w") as file:
            deadline = time.monotonic() + _SECONDS_TO_WAIT
            told = False
            while not _locked(file):
                if time.monotonic() > deadline:
                    raise CannotResume(f"run {self.run_id} is still going in another process")
                if not told:
                    say(f"run {self.run_id} is still held by another process: waiting for it")
                    told = True
                time.sleep(0.2)
            yield

    def core_seconds(self) -> float:
        """Processor time that earlier sessions of this run took, as far as they could say it."""
        try:
            return float(self._seconds.read_text())
        except (OSError, ValueError):
            return 0.0

    def keep_core_seconds(self, seconds: float) -> None:
        """For a session that comes after an interrupted one; a killed one keeps nothing."""
        if self.private.exists():
            write_whole(self._seconds, repr(seconds).encode())

    @property
    def _seconds(self) -> Path:
        return self.private / "core-seconds"

    def close(self) -> None:
        """Destroys the key and what only a replay would need."""
        RunKey.destroy(self.key)
        shutil.rmtree(self.checkpoints, ignore_errors=True)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def runs_folder() -> Path:
    return home() / "runs"


def new_run_id(spec: RunSpec) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{spec.method}-{dataset_name(spec.dataset)}-{secrets.token_hex(2)}"


def open_folder(run_id: str, runs: Path | None = None) -> RunFolder:
    """The folder of a run that exists, in `runs` or where all runs are."""
    runs = runs or runs_folder()
    folder = RunFolder(runs / run_id)
    if not (folder.path / "spec.json").exists():
        recent = sorted(path.parent.name for path in runs.glob("*/spec.json"))[-3:]
        raise CannotResume(f"no run {run_id!r}; the latest are: {', '.join(recent) or 'none'}")
    return folder


def make_folder(run_id: str, spec: RunSpec, runs: Path | None = None) -> RunFolder:
    folder = RunFolder((runs or runs_folder()) / run_id)
    if (folder.path / "spec.json").exists():
        raise BadInput(
            f"there is a run {run_id!r} already; to go on with it: dpray resume {run_id}"
        )
    private_folder(folder.private)
    folder.write_json("spec.json", spec.to_json())
    return folder
