"""What the runs of a table leave in the results folder: one JSON file a row and seed.

A file is written whole when its run is finished and is named by a hash of the specification, so
that changed settings are run anew. While a run goes on, a `.started` file holds its run id and
a lock: whoever comes after a kill takes that run up again, and nobody runs it twice at once.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpray.api import run_spec
from dpray.contract import Synthesizer
from dpray.errors import BadInput, CannotResume, Diverged, LedgerDamaged
from dpray.execute import Result, check, execute
from dpray.methods.continual import Continual
from dpray.privacy.events import noise_multiplier_of
from dpray.privacy.ledger import Entry, Ledger
from dpray.progress import Progress, silent
from dpray.reporting.grid import class_grid
from dpray.runs import new_run_id, open_folder, runs_folder
from dpray.spec import RunSpec
from dpray.storage import write_whole
from tables.commits import this_commit
from tables.rows import Row

IMAGES_PER_CLASS = 5
# Weights that are numbers still, but so large that what is drawn is not: no scores, no release.
_NOT_NUMBERS = "hold values that are not numbers"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where the run of one row and seed is kept."""

    row: Row
    seed: int
    folder: Path

    @property
    def spec(self) -> RunSpec:
        return self.row.spec(self.seed)

    @property
    def stem(self) -> str:
        content = json.dumps(self.spec.to_json(), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        words = re.sub(r"[^a-z0-9]+", "-", self.row.label.lower()).strip("-")
        return f"{words}-seed{self.seed}-{digest}"

    @property
    def finished(self) -> Path:
        return self.folder / f"{self.stem}.json"

    @property
    def started(self) -> Path:
        return self.folder / f"{self.stem}.started"

    @property
    def images(self) -> Path:
        return self.folder / f"{self.stem}.png"

    def read(self) -> dict[str, Any] | None:
        """The finished run, or None where there is none with the settings of today."""
        try:
            value: dict[str, Any] = json.loads(self.finished.read_text())
        except FileNotFoundError:
            return None
        # The hash holds what the row sets; defaults of the method may have moved since.
        now = _all_settings(self.spec)
        same = all(now.get(name, then) == then for name, then in value["settings"].items())
        return value if same else None


def run_once(
    place: Place, *, track: bool = True, progress: Progress = silent, say: Say = print
) -> None:
    """Runs what is not finished yet, from where it stopped if it was started before."""
    if place.read() is not None:
        return
    place.folder.mkdir(parents=True, exist_ok=True)
    with _held(place.started) as mine:
        if not mine:
            say(f"{place.row.label}, seed {place.seed}: another process is at it, left out")
            return
        if place.read() is not None:
            return
        try:
            result, resumed = _go_on(place, track=track, progress=progress, say=say)
        except (Diverged, BadInput) as error:
            if not isinstance(error, Diverged) and _NOT_NUMBERS not in str(error):
                raise
            say(f"{place.row.label}, seed {place.seed}: {error}")
            keep_diverged(place, place.started.read_text().strip(), str(error))
        else:
            keep(place, result, resumed=resumed)
        place.started.unlink()


def _go_on(place: Place, *, track: bool, progress: Progress, say: Say) -> tuple[Result, bool]:
    """The run that `.started` names, or a new one where that cannot be taken up again."""
    start = partial(run_spec, place.spec, track=track, progress=progress, say=say)
    run_id = place.started.read_text().strip()
    if run_id and (runs_folder() / run_id / "spec.json").exists():
        say(f"{place.row.label}, seed {place.seed}: goes on with {run_id}")
        try:
            return start(run_id=run_id, start=partial(execute, resume=True)).result, True
        except (CannotResume, LedgerDamaged) as error:
            say(f"warning: {error}; it is started anew")
    run_id = new_run_id(place.spec)
    place.started.write_text(run_id)  # in place: the lock is on this very file
    return start(run_id=run_id).result, False


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Whether this process alone holds the file; the lock goes with the process."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def keep(place: Place, result: Result, *, resumed: bool) -> None:
    """All of it is public: the card's figures, metrics, and images of the release."""
    if isinstance(result.release, Synthesizer):
        rng = torch.Generator().manual_seed(place.seed)
        class_grid(result.release, IMAGES_PER_CLASS, rng).save(place.images)
    value: dict[str, Any] = {
        "label": place.row.label,
        "run_id": result.run_id,
        "commit": this_commit(),
        "spec": result.spec.to_json(),
        "settings": _all_settings(result.spec),
        "epsilon": result.card.epsilon,
        "delta": result.card.delta,
        "noise_multiplier": result.card.noise_multiplier,
        "steps": result.card.steps,
        "sample_rate": result.card.sample_rate,
        "fit_for_release": result.card.fit_for_release,
        "metrics": {m.name: m.value for m in result.metrics if math.isfinite(m.value)},
        "resumed": resumed,  # its core-seconds are those of its last life alone
    }
    if lost := [m.name for m in result.metrics if math.isnan(m.value)]:
        value["not_numbers"] = lost
    write_whole(place.finished, (json.dumps(value, indent=2) + "\n").encode())


def keep_diverged(place: Place, run_id: str, reason: str) -> None:
    """A run without a release is a result as well, and what it spent is spent.

    Guarantee: only what its card would have said is read, the ledger; nothing is measured.
    """
    folder = open_folder(run_id)
    ledger = Ledger.open(folder.ledger, subject={})
    paid = ledger.entries[0] if ledger.entries else None  # none: the public model diverged
    epsilon = ledger.epsilon if paid else 0.0
    value = {
        "label": place.row.label,
        "run_id": run_id,
        "commit": this_commit(),
        "spec": folder.read_spec().to_json(),
        "settings": _all_settings(place.spec),
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": ledger.budget.delta,
        "noise_multiplier": _noise_multiplier(paid) if paid else None,
        "steps": paid.steps if paid else 0,
        "metrics": {"core_seconds": folder.core_seconds()},
        "diverged": reason,
        "resumed": False,
    }
    write_whole(place.finished, (json.dumps(value, indent=2) + "\n").encode())


def _noise_multiplier(paid: Entry) -> float | None:
    try:
        return noise_multiplier_of(paid.event)
    except LedgerDamaged:  # of several noises, or of none
        return None


def _all_settings(spec: RunSpec) -> dict[str, Any]:
    """Defaults included, also those of a method within the method."""
    method = check(spec)
    settings: dict[str, Any] = dataclasses.asdict(method)  # type: ignore[call-overload]
    if isinstance(method, Continual):
        learner = dataclasses.asdict(method.make_learner())  # type: ignore[call-overload]
        settings |= {f"learner.{name}": value for name, value in learner.items()}
    return settings
