"""Looks at a training on its way: scores that are paid for, so that a scheduler may stop a trial.

At set shares of the training what would be released by now is scored as the end will be: on a
public test set, or on a private hold-out by a noisy count of its own. How many looks there will be
is fixed before the first, and the budget of the hold-out is shared out among all of them. The last
one is the end of the run, which `execute` measures and tells.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpray.contract import Release, Run, Synthesizer
from dpray.data.records import Dataset
from dpray.errors import BadInput, CannotResume, Diverged
from dpray.evaluation.in_run import evaluate
from dpray.evaluation.suite import Suite, suite_of_run

_MOST_LOOKS = 1000


@dataclass(frozen=True)
class Looks:
    """At which shares of its training a run is scored, and who hears the scores.

    `report` gets the place of a look, from 1, and its score, and may raise to stop the run. After a
    crash it hears again what it heard before.
    """

    shares: tuple[float, ...]  # increasing; the last is 1, the end
    report: Callable[[int, float], None]

    def __post_init__(self) -> None:
        pairs = zip((0.0, *self.shares), self.shares, strict=False)
        if not self.shares or self.shares[-1] != 1 or not all(a < b for a, b in pairs):
            raise BadInput(
                f"looks at the shares {self.shares} of a training: they must be above 0 and "
                "increase up to 1"
            )
        if len(self.shares) > _MOST_LOOKS:
            raise BadInput(f"{len(self.shares)} looks are too many: at most {_MOST_LOOKS}")

    @property
    def count(self) -> int:
        return len(self.shares)


def looks_at(count: int, factor: float = 2) -> tuple[float, ...]:
    """`count` shares, each `factor` times the one before it: 1/8, 1/4, 1/2 and 1 for four."""
    if not 1 <= count <= _MOST_LOOKS or not 1 < factor < math.inf:
        raise BadInput(
            f"{count} looks, each {factor:g} times as far as the one before it: from 1 to "
            f"{_MOST_LOOKS} looks and a factor above 1 can be meant"
        )
    return tuple(float(factor) ** (place - count) for place in range(1, count + 1))


@dataclass
class Watch:
    """Takes the looks of one run but the last; `Run.look` calls it after every step.

    Guarantee: what is scored is a function of noisy answers that the training paid for. Each score
    on a private hold-out is charged before that is read, under a name and so with a noise of its
    own. A score is kept before it is told and never taken again. The training stays as it is: the
    release is copied, and global generators are put back.
    """

    looks: Looks
    dataset: Dataset
    suite: Suite | None  # of synthetic images; None: the one of a run
    passed: int = 0  # by this process

    def __call__(self, run: Run, done: int, total: int, release: Callable[[], Release]) -> None:
        while self.passed < self.looks.count - 1 and done / total >= self.looks.shares[self.passed]:
            self.passed += 1
            score = self._kept_score(self.passed, run, done, release)
            # What follows a score that was told should not have to be computed twice.
            run.checkpoints.saved_at = -math.inf
            self.looks.report(self.passed, score)

    def _kept_score(self, place: int, run: Run, done: int, release: Callable[[], Release]) -> float:
        with _generators_put_back(run):
            made = release()
            made = replace(made, module=copy.deepcopy(made.module).eval())
            refuse_what_diverged(made)
            noisy = run.once(f"look-{place}", lambda: self._score(place, made, run))
        mark = torch.tensor([done, *_digest(made)])
        seen = run.once(f"look-{place}-of", lambda: mark)
        if seen[0] == done and not torch.equal(seen, mark):
            raise CannotResume(
                f"look {place} was at other weights after step {done}: by other arithmetic on the "
                "same noise a run must not go on where its score was told; start a new run"
            )
        return float(noisy)

    def _score(self, place: int, made: Release, run: Run) -> Tensor:
        suite = self.suite
        if isinstance(made, Synthesizer):
            suite = suite or suite_of_run(made)
            suite = replace(suite, classifiers=(suite.headline,), fidelity=False)
        metrics = evaluate(
            made,
            self.dataset,
            run,
            lambda text: None,
            suite=suite,
            look=(place, self.looks.count),
        )
        score = next(metric.value for metric in metrics if metric.name == "test_accuracy")
        return torch.tensor([score], dtype=torch.float64)


def refuse_what_diverged(release: Release) -> None:
    """The weights are public by now: to look at them costs nothing."""
    if not all(bool(value.isfinite().all()) for value in release.module.state_dict().values()):
        raise Diverged(
            "training diverged: the weights are not finite numbers; the budget is spent, "
            "lower the learning rate before you spend another"
        )


def _digest(release: Release) -> bytes:
    """Tells weights apart to the bit."""
    digest = hashlib.sha256()
    for name, value in release.module.state_dict().items():
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"/{name}/{list(value.shape)}/".encode())
        digest.update(content.numpy().tobytes())
    return digest.digest()


@contextmanager
def _generators_put_back(run: Run) -> Iterator[None]:
    """Whoever draws from a global generator here leaves it as it was."""
    devices = [run.device] if run.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
