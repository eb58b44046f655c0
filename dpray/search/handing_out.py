"""Hands out the trials of a search, one after the other, and takes their scores back.

What is handed out is in the journal before, and what came back is in it after. Whoever runs the
trials (a loop in this process, Ray Tune) may therefore end at any moment: trials that were under
way are handed out again, under the same number and with the same draw.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpray.privacy.noise import RunKey
from dpray.search.budgets import DataFacts
from dpray.search.folder import SearchFolder
from dpray.search.journal import Finished, Journal, Started
from dpray.search.space import Draw
from dpray.search.study import Study
from dpray.search.trials import SearchSpec, trial_rng


@dataclass(frozen=True)
class Job:
    """A trial as whoever runs it needs it; plain values alone, to be sent anywhere."""

    number: int
    run_id: str
    spec: dict[str, Any]
    runs: Path  # the folder in which its run lies
    score: str
    score_images: int
    looks: int  # 1: it is scored at its end alone


class Trials:
    """The trials of one search that are still to be made."""

    def __init__(
        self,
        folder: SearchFolder,
        journal: Journal,
        facts: DataFacts,
        *,
        final_facts: DataFacts | None = None,
        test_key: int | None = None,
    ) -> None:
        self.folder, self.journal, self.search = folder, journal, journal.search
        self.facts, self.final_facts = facts, final_facts
        self._key = folder.key(test_key)
        self._interrupted = deque(journal.unfinished())
        self._fresh = deque(journal.not_started())
        self._study: Study | None = None
        if self.search.charge != "select":  # what it shows is not to be seen there
            self._study = Study(
                folder.study,
                folder.search_id,
                self.search.space,
                journal,
                seed=self.search.seed,
            )

    @property
    def left(self) -> int:
        """How many were not handed out yet. With `charge` select it is not to be told."""
        return len(self._interrupted) + len(self._fresh)

    def next(self) -> Job | None:
        """The next trial, already written down; None where all are handed out."""
        if self._interrupted:
            return self._job(self._interrupted.popleft())
        if not self._fresh:
            return None
        number = self._fresh[0]
        started = self.journal.start(number, self._draw(number), f"trial-{number:04d}")
        self._fresh.popleft()
        return self._job(started)

    def ended(self, number: int, score: float, *, stopped: bool = False) -> Finished:
        self.journal.finish(number, score, stopped=stopped)
        finished = next(one for one in self.journal.finished() if one.number == number)
        if self._study is not None:
            self._study.ended(finished)
        return finished

    def _draw(self, number: int) -> Draw:
        if self.search.sampler == "tpe" and self._study is not None:
            return self._study.draw(number, self._refuse_misfit)
        return self.search.draw_that_fits(
            self.facts, trial_rng(self._key, number), self.final_facts
        )

    def _refuse_misfit(self, drawn: Draw) -> None:
        self.search.refuse_misfit(drawn, self.facts, self.final_facts)

    def _job(self, started: Started) -> Job:
        search = self.search
        return Job(
            number=started.number,
            run_id=started.run_id,
            spec=search.trial_spec(started.draw, self.facts).to_json(),
            runs=self.folder.runs,
            score=search.score,
            score_images=search.score_images,
            looks=1 if search.scheduler == "none" else search.looks,
        )


def begin(folder: SearchFolder, search: SearchSpec, *, test_key: int | None = None) -> Journal:
    """The journal of a search, with its first line; that of one that began before is read."""
    journal = Journal(folder.private)
    key: RunKey | None = None if journal.has_begun else folder.key(test_key)
    journal.begin(search, key=key)
    return journal
