"""Runs trials: one as `execute` runs anything, or all of a search in this process in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpray.errors import BadInput, Diverged
from dpray.evaluation.looks import Looks, looks_at
from dpray.evaluation.suite import Suite
from dpray.execute import execute
from dpray.pool import Pool
from dpray.progress import Bar, Progress, silent
from dpray.runs import RunFolder
from dpray.search.handing_out import Job, Trials
from dpray.search.journal import WORST, Finished
from dpray.spec import RunSpec

SCORE = "test_accuracy"  # of the hold-out, noisy and paid for; of a proxy, that on its test set
Report = Callable[[int, float], None]


def run_trial(
    job: Job,
    *,
    pool: Pool | None = None,
    report: Report | None = None,
    test_key: int | None = None,
) -> float:
    """The score of a trial, which starts here or goes on where it was when it was cut off.

    `report` hears of every look on the way, by its place from 1, and may raise to stop the trial.
    A run that diverged, or refuses its settings, has the worst score: it is no crash, and would end
    so again.
    """
    folder = RunFolder(job.runs / job.run_id)
    looks = None
    if job.looks > 1:
        looks = Looks(looks_at(job.looks), partial(_tell_on_the_way, job, report))
    try:
        result = execute(
            RunSpec.from_json(job.spec),
            run_id=job.run_id,
            resume=(folder.path / "spec.json").exists(),
            runs=job.runs,
            suite=score_suite(job.score, job.score_images),
            looks=looks,
            pool=pool,
            test_key=test_key,
        )
    except (BadInput, Diverged):
        folder.close()
        return WORST
    return result.metric(SCORE)


def _tell_on_the_way(job: Job, report: Report | None, place: int, score: float) -> None:
    """Not of the end, where the run is still to be written: that score is given back."""
    if report is not None and place < job.looks:
        report(place, score)


def score_suite(classifier: str, num_images: int) -> Suite:
    """How a trial's synthetic images are scored: by one classifier, and by nothing else."""
    return Suite(
        "score",
        (classifier,),
        runs=1,
        inception=False,
        headline=classifier,
        num_images=num_images,
        fidelity=False,
    )


def run_here(
    trials: Trials,
    *,
    pool: Pool | None = None,
    progress: Progress = silent,
    test_key: int | None = None,
) -> None:
    """All that is left of a search, one trial after the other in this process."""
    with bar_of(trials, progress) as shown:
        while (job := trials.next()) is not None:
            score = run_trial(job, pool=pool, test_key=test_key)
            shown.ended(trials.ended(job.number, score))


class bar_of:
    """A bar that tells how far a search is, where that may be told.

    Guarantee: with `charge` select neither the number of trials nor a score is shown.
    """

    def __init__(self, trials: Trials, progress: Progress) -> None:
        self._secret = trials.search.charge == "select"
        label = "trials (their number is a secret)" if self._secret else "trials"
        done = [] if self._secret else trials.journal.finished()
        self._manager = progress(label, None if self._secret else trials.journal.num_trials)
        self._done, self._best = done, WORST
        self._bar: Bar | None = None

    def __enter__(self) -> bar_of:
        self._bar = self._manager.__enter__()
        for one in self._done:
            self.ended(one)
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.__exit__(None, None, None)

    def ended(self, one: Finished) -> None:
        if self._secret or self._bar is None:
            return
        self._bar.advance()
        if not one.stopped and one.score > self._best:
            self._best = one.score
            self._bar.note(f"best {100 * one.score:.2f} %")
