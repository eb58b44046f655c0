"""What a search was charged with: all it takes to compute the epsilon of the whole again.

A search is charged for every trial it may have made: for the best of a secret number (`select`),
or for all that were declared (`compose`). The events that a trial may be charged with, and the law
or the number of trials, are public before the first trial. They go onto the card of the release
that the search chose, and tell neither which trial it was nor how many there were.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import dp_accounting as dp

from dpray.errors import BadInput, LedgerDamaged
from dpray.privacy.accounting import Adjacency
from dpray.privacy.events import event_from_json, event_to_json
from dpray.privacy.ledger import Ledger
from dpray.privacy.parts import HOLD_OUT, TRAINING, may_share_a_record, shared_by_a_record
from dpray.privacy.selection import Trial, TrialLaw, cost_of_composition, cost_of_selection
from dpray.privacy.selection_profiles import as_trials, renyi_composed, renyi_of

# By so much may noise lie below what was declared: calibrations end that close to each other, and
# machines round differently. It moves epsilon by less than the last digit a card is checked to.
_ROUNDING = 1e-8


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A search that was paid for: `law` and `cap` go with select, `num_trials` with compose."""

    charge: Literal["select", "compose"]
    trials: tuple[Trial, ...]  # every way in which one trial may have been charged
    law: TrialLaw | None = None  # of the number of trials
    cap: int | None = None  # which that number never exceeds
    num_trials: int | None = None  # all of them charged, finished or not

    def __post_init__(self) -> None:
        as_trials(self.trials)  # refuses none at all, and those that do not go together
        given = {name for name in ("law", "cap", "num_trials") if getattr(self, name) is not None}
        needed = {"select": {"law", "cap"}, "compose": {"num_trials"}}.get(self.charge)
        if given != needed:
            raise BadInput(
                f"a search with charge {self.charge!r} and {', '.join(sorted(given)) or 'nothing'}:"
                " select has law and cap, compose has num_trials, and there is no other"
            )
        for count in (self.cap, self.num_trials):
            if count is not None and (type(count) is not int or count < 1):
                raise BadInput(f"{count!r} trials are out of range: a whole number, at least 1")

    def bounds(self, delta: float, adjacency: Adjacency) -> dict[str, float | None]:
        """Epsilon of the whole search by each bound; None where a bound is not known.

        Guarantee: every one is an upper bound for all that leaves the search, as
        `cost_of_selection` and `cost_of_composition` say it.
        """
        return dict(_bounds(json.dumps(self.to_json()), delta, adjacency))

    def epsilon(self, delta: float, adjacency: Adjacency) -> float:
        known = [value for value in self.bounds(delta, adjacency).values() if value is not None]
        return min(known, default=math.inf)

    def check_ledger(self, ledger: Ledger) -> None:
        """Refuses the ledger of a run that can be no trial of this search.

        Guarantee: what the ledger of an accepted run holds, on the training records and on the
        hold-out records, is covered by one of the trials that epsilon was computed for.
        """
        if not any(_covers(trial, ledger) for trial in self.trials):
            raise LedgerDamaged(
                "the run on the card was charged with more than any trial of its search: the "
                "events of the search are those of another one"
            )

    @property
    def condition(self) -> str:
        """What epsilon rests on beside the events, for the card."""
        if self.law is None:
            return "No more trials were made on these records than the search had declared."
        return (
            "The settings of every trial were drawn independently of all others. How many trials "
            "there were and how long they took stays secret, and none but the best is ever shown."
        )

    def lines(self) -> Iterator[tuple[str, str]]:
        """For a person: how many trials there may have been, and what each was charged with."""
        if self.law is not None:
            yield "number of trials", f"a secret, drawn once: {self.law.name}"
            yield "mean, at most", f"{self.law.mean:g}, {self.cap:,}"
        else:
            yield "number of trials", f"{self.num_trials:,}, all of them charged"
        yield "charges of a trial", f"{len(self.trials):,} that may differ; the costliest counts"

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"charge": self.charge}
        if self.law is not None:
            # JSON has no infinity: null stands for the shape of a Poisson law.
            shape = self.law.shape if math.isfinite(self.law.shape) else None
            value |= {"law": {"shape": shape, "mean": float(self.law.mean)}, "cap": self.cap}
        else:
            value |= {"num_trials": self.num_trials}
        return value | {"trials": [_trial_to_json(trial) for trial in self.trials]}

    @classmethod
    def from_json(cls, value: Any) -> Searched:
        try:
            trials = tuple(_trial_from_json(trial) for trial in value["trials"])
            if value["charge"] == "compose":
                return cls(charge="compose", trials=trials, num_trials=value["num_trials"])
            shape, mean = value["law"]["shape"], float(value["law"]["mean"])
            law = TrialLaw(math.inf if shape is None else float(shape), mean)
            return cls(charge=value["charge"], trials=trials, law=law, cap=value["cap"])
        except (KeyError, TypeError, ValueError, OverflowError, BadInput) as error:
            raise LedgerDamaged(f"the search on the card cannot be read: {error!r}") from None


@lru_cache(maxsize=32)
def _bounds(key: str, delta: float, adjacency: Adjacency) -> dict[str, float | None]:
    """Kept by what the search is, for a card is made, written and verified in one process."""
    searched = Searched.from_json(json.loads(key))
    if searched.law is not None:
        return cost_of_selection(
            searched.trials, searched.law, delta, cap=searched.cap, adjacency=adjacency
        ).by_bound()
    assert searched.num_trials is not None
    return _composed(searched.trials, searched.num_trials, delta, adjacency)


def _composed(
    trials: Sequence[Trial], num_trials: int, delta: float, adjacency: Adjacency
) -> dict[str, float | None]:
    """Epsilon of all declared trials, each charged with any of these events.

    Guarantee: a sampler that looks back may choose the event of a trial by what came before. The
    largest Renyi divergence of any event bounds each trial whatever that was, so it adds up.
    """
    if len(trials) == 1:
        found = cost_of_composition(trials[0], num_trials, delta, adjacency=adjacency)
        return {"pld": found.pld, "rdp": found.rdp}
    epsilons = []
    for events in zip(*(one.parts(adjacency) for one in trials), strict=True):
        curve = renyi_of(events, adjacency)
        if curve is None:
            return {"pld": None, "rdp": None}
        epsilons.append(renyi_composed(curve, num_trials, delta))
    return {"pld": None, "rdp": max(epsilons)}


def _covers(trial: Trial, ledger: Ledger) -> bool:
    """Whether every kind of record met no more than a record of that part meets in the trial."""
    score = trial.score or dp.NoOpDpEvent()
    known = []
    for part, declared in ((TRAINING, trial.training), (HOLD_OUT, score)):
        own = [entry for entry in ledger.entries if may_share_a_record(entry.part, part)]
        groups = shared_by_a_record([entry.part for entry in own])
        if ledger.adjacency is Adjacency.REPLACE:
            groups = [list(range(len(own)))]  # a replaced record may change its label
        if not all(_is_within([own[i].event for i in group], declared) for group in groups):
            return False
        known += own
    return all(entry in known for entry in ledger.entries)


def _is_within(charged: Sequence[dp.DpEvent], declared: dp.DpEvent) -> bool:
    """Whether these charges together ask no more than the declared event.

    Guarantee: Gaussians of all records are together one Gaussian, whose 1 / noise^2 is the sum of
    theirs, so they compare by that sum; of any other event there are no more uses than declared.
    Fewer uses of the same events tell no more than all of them do.
    """
    own, allowed = _uses(dp.ComposedDpEvent(list(charged))), _uses(declared)
    if _squared_shift(own) > _squared_shift(allowed) * (1 + _ROUNDING):
        return False
    return all(
        isinstance(event, dp.GaussianDpEvent) or _times(event, own) <= _times(event, allowed)
        for event, _ in own
    )


def _uses(event: dp.DpEvent, times: int = 1) -> list[tuple[dp.DpEvent, int]]:
    """The single events of a composition, and how often each is used."""
    match event:
        case dp.NoOpDpEvent():
            return []
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return _uses(inner, times * count)
        case dp.ComposedDpEvent(events=inner):
            return [use for one in inner for use in _uses(one, times)]
    return [(event, times)]


def _squared_shift(uses: Sequence[tuple[dp.DpEvent, int]]) -> float:
    noises = [(e.noise_multiplier, times) for e, times in uses if isinstance(e, dp.GaussianDpEvent)]
    return sum(math.inf if noise < 1e-100 else times / noise**2 for noise, times in noises)


def _times(event: dp.DpEvent, uses: Sequence[tuple[dp.DpEvent, int]]) -> int:
    own = event_to_json(event)
    return sum(times for other, times in uses if _alike(own, event_to_json(other)))


def _alike(one: Any, other: Any) -> bool:
    """The same JSON but for the last digits of its numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    return bool(one == other)


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    score = None if trial.score is None else event_to_json(trial.score)
    return {"training": event_to_json(trial.training), "score": score}


def _trial_from_json(value: dict[str, Any]) -> Trial:
    training, score = (
        None if value[name] is None else event_from_json(_checked(value[name]))
        for name in ("training", "score")
    )
    if training is None:
        raise BadInput("a trial without training")
    return Trial(training, score)


def _checked(event: Any) -> Any:
    """An event whose numbers an accountant can take: a NaN may come out as a cost of zero."""
    for name, value in event.items() if isinstance(event, dict) else ():
        largest = 1.0 if name == "sample_rate" else 1e300
        if isinstance(value, int | float) and not 0 < value <= largest:
            raise BadInput(f"{name} {value} of an event is out of range")
        for inner in value if isinstance(value, list) else [value]:
            _checked(inner)
    return event
