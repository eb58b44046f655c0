"""What happened in a search, on the private side: one JSON line each, never changed afterwards.

A trial is written down before it starts, with its draw, and again when it ends. So a crash loses
no trial: what was started keeps its number and its draw, and is taken up again or counts as worst.
With `charge` select the number of trials is a secret, kept in the first line and nowhere else.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpray.errors import BudgetExceeded, CannotResume
from dpray.privacy.noise import RunKey
from dpray.search.trials import SearchSpec
from dpray.storage import clear_errors, private_folder, sync_folder

WORST = -math.inf


@dataclass(frozen=True)
class Started:
    number: int  # from 0
    draw: Mapping[str, Any]
    run_id: str


@dataclass(frozen=True)
class Finished(Started):
    score: float  # `WORST` where the trial failed
    stopped: bool = False  # by the scheduler: it has a score on its way, and no release


def best_of(trials: Iterable[Finished]) -> Finished | None:
    """The best score of those that came to their end, of equals the first; None where none did."""
    scored = [one for one in trials if one.score > WORST and not one.stopped]
    return max(scored, key=lambda one: (one.score, -one.number), default=None)


class Journal:
    """The journal in `folder`, as it is on the disk; made by `begin` where there is none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"
        self._search: dict[str, Any] | None = None
        self._num_trials = 0
        self._started: dict[int, Started] = {}
        self._scores: dict[int, float] = {}
        self._stopped: set[int] = set()
        private_folder(folder)
        if self.path.exists():
            self._read()

    @property
    def has_begun(self) -> bool:
        return self._search is not None

    @property
    def search(self) -> SearchSpec:
        return SearchSpec.from_json(self._header)

    @property
    def num_trials(self) -> int:
        """How many trials this search makes. With `charge` select it is not to be told."""
        _ = self._header
        return self._num_trials

    def begin(self, search: SearchSpec, *, key: RunKey | None = None) -> None:
        """Writes the first line, with the number of trials; or finds it as it was written before.

        Guarantee: a number that was drawn stays, however often the search is taken up again.
        """
        value = json.loads(json.dumps(search.to_json()))
        if self._search is not None:
            self._refuse_another(value)
            return
        num_trials = search.number_of_trials(key or RunKey.fresh())
        self._append({"line": "search", "search": value, "num_trials": num_trials})
        self._search, self._num_trials = value, num_trials

    def start(self, number: int, draw: Mapping[str, Any], run_id: str) -> Started:
        """To be called before the trial: when it returns, the trial is on the disk."""
        started = Started(number, dict(draw), run_id)
        if not 0 <= number < self.num_trials:
            raise BudgetExceeded(f"trial {number} is none of those that were declared")
        known = self._started.get(number)
        if known is None:
            self._append(
                {"line": "started", "number": number, "draw": dict(draw), "run_id": run_id}
            )
            self._started[number] = started
        elif known != started:
            raise CannotResume(
                f"trial {number} was started as run {known.run_id}: it goes on as that or counts "
                "as worst, and is not drawn again"
            )
        return started

    def finish(self, number: int, score: float, *, stopped: bool = False) -> None:
        """After the trial: its noisy score, or `WORST` where it failed for good.

        `stopped` says that a scheduler ended it, and that the score is its last one until then.
        """
        if number not in self._started:
            raise CannotResume(f"trial {number} ends and was never started")
        if number in self._scores:
            raise CannotResume(f"trial {number} has ended already")
        score = score if math.isfinite(score) else WORST
        written = score if math.isfinite(score) else None  # JSON has no infinity
        line = {"line": "finished", "number": number, "score": written}
        self._append(line | ({"stopped": True} if stopped else {}))
        self._scores[number] = score
        if stopped:
            self._stopped.add(number)

    def unfinished(self) -> list[Started]:
        """Started and not ended, as after a crash: to be taken up under the same number."""
        return [self._started[n] for n in sorted(self._started) if n not in self._scores]

    def finished(self) -> list[Finished]:
        return [
            Finished(
                n,
                self._started[n].draw,
                self._started[n].run_id,
                self._scores[n],
                n in self._stopped,
            )
            for n in sorted(self._scores)
        ]

    def not_started(self) -> list[int]:
        return [number for number in range(self.num_trials) if number not in self._started]

    @property
    def is_complete(self) -> bool:
        return len(self._scores) == self.num_trials

    def best(self) -> Finished | None:
        """The trial with the best score that came to its end, of equals the first; else None.

        Guarantee: with `charge` select only a search that made all its trials says it, for one
        that stops when it likes is no draw from the law that was paid for.
        """
        if self._header["charge"] == "select" and not self.is_complete:
            raise CannotResume(
                "this search is not finished, and with --charge select only a whole one may name "
                "its best trial: take it up again"
            )
        return best_of(self.finished())

    @property
    def _header(self) -> dict[str, Any]:
        if self._search is None:
            raise CannotResume(f"there is no search in {self.path.parent}")
        return self._search

    def _refuse_another(self, value: dict[str, Any]) -> None:
        for name in sorted({*self._header, *value}):
            if self._header.get(name) != value.get(name):
                raise CannotResume(
                    f"{name} changed since this search began: its trials were drawn and charged "
                    "for another; start a new search"
                )

    def _append(self, value: dict[str, Any]) -> None:
        line = (json.dumps(value, sort_keys=True) + "\n").encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with clear_errors(self.path):
            is_new = not self.path.exists()
            with open(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(file.fileno()).st_size
                try:
                    while line:
                        line = line[file.write(line) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
            if is_new:
                sync_folder(self.path.parent)

    def _read(self) -> None:
        content = self.path.read_bytes()
        *lines, torn = content.split(b"\n")
        if torn:  # never acted on: what follows a line waits until it is whole
            with clear_errors(self.path), open(self.path, "r+b") as file:
                file.truncate(len(content) - len(torn))
                os.fsync(file.fileno())
        for place, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                raise CannotResume(
                    f"{self.path} is damaged in line {place}: the search cannot go on"
                ) from None

    def _take(self, value: dict[str, Any]) -> None:
        if value["line"] == "search":
            self._search, self._num_trials = value["search"], int(value["num_trials"])
        elif value["line"] == "started":
            number = int(value["number"])
            self._started[number] = Started(number, value["draw"], value["run_id"])
        else:
            score = value["score"]
            self._scores[int(value["number"])] = WORST if score is None else float(score)
            if value.get("stopped", False):
                self._stopped.add(int(value["number"]))
