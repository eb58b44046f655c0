"""What a whole search costs: computed before its first trial, and true whatever happens in it.

Trials at one epsilon and delta still differ in the rest of their privacy profile, by batch size
and steps. What is charged is the costliest of all that the space can draw, so it is known
beforehand, it does not depend on what was drawn, and a crashed trial keeps its charge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dp

from dpray import methods
from dpray.errors import BadInput
from dpray.privacy.searched import Searched
from dpray.privacy.selection import Trial
from dpray.progress import Progress, silent
from dpray.search.budgets import (
    CannotMeetBudget,
    DataFacts,
    keys_that_move_the_cost,
    score_event,
    training_event,
)
from dpray.search.modes import Charge
from dpray.search.space import all_values
from dpray.search.trials import SearchSpec


@dataclass(frozen=True)
class SearchCost:
    """Epsilon and delta of all that leaves a search."""

    how: Charge
    epsilon: float  # infinite where nobody paid
    delta: float
    bound: str | None  # which bound gave epsilon: profile, pld or rdp; None where none was needed
    covers: str  # for the card: what epsilon is the epsilon of
    reason: str | None = None  # why it is not fit for release; None where it is
    searched: Searched | None = None  # what epsilon was computed from; None where nobody paid

    @property
    def releasable(self) -> bool:
        return self.reason is None

    def to_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "bound": self.bound,
            "covers": self.covers,
            "releasable": self.releasable,
            "reason": self.reason,
            "searched": None if self.searched is None else self.searched.to_json(),
        }


def cost_beforehand(
    search: SearchSpec, facts: DataFacts, progress: Progress = silent
) -> SearchCost:
    """The cost of a search on records of which `facts` are public. No record is read."""
    if search.charge in ("public", "none"):
        return search_cost(search)
    events = possible_events(search, facts, progress)
    looks = 1 if search.scheduler == "none" else search.looks
    return search_cost(search, events, score_event(search.budget, search.adjacency, looks))


def possible_events(
    search: SearchSpec, facts: DataFacts, progress: Progress = silent
) -> list[dp.DpEvent]:
    """What a trial may be charged with on its training records: every event once."""
    kind = methods.find(search.method)
    names = keys_that_move_the_cost(search.space, kind)
    ways = list(itertools.product(*(all_values(search.space[name]) or () for name in names)))
    found: dict[str, dp.DpEvent] = {}
    with progress("costs of trials", len(ways)) as bar:
        for values in ways:
            bar.advance()
            try:
                spec = search.trial_spec(dict(zip(names, values, strict=True)), facts)
            except CannotMeetBudget:
                continue  # it is never drawn
            method = kind(**spec.settings)
            event = training_event(method, facts, search.budget, search.adjacency)
            found.setdefault(repr(event), event)
    if not found:
        raise CannotMeetBudget(
            f"no combination of {', '.join(names)} in the space meets {search.budget}"
        )
    return list(found.values())


def search_cost(
    search: SearchSpec,
    training_event: dp.DpEvent | Sequence[dp.DpEvent] | None = None,
    score_event: dp.DpEvent | None = None,
) -> SearchCost:
    """The cost of a search whose trials are charged with these events, or with one of several.

    Guarantee: an upper bound for all that leaves. `public`: trials read no private record.
    `select`: see `cost_of_selection`; nothing but the best trial may leave. `compose`: every
    declared trial is charged, on training and on held-out records side by side.
    """
    if search.charge == "public":
        return SearchCost(
            "public",
            0.0,
            0.0,
            None,
            f"this run alone: its settings were chosen on {search.proxy}, which costs nothing",
        )
    if search.charge == "none":
        reason = "its settings were chosen by trials on the private records that nobody paid for"
        return SearchCost(
            "none", math.inf, search.delta, None, "this run, but not the search", reason
        )
    searched = _searched(search, _trials(training_event, score_event))
    epsilon, bound = _least(searched.bounds(search.delta, search.adjacency))
    if search.charge == "compose":
        if bound is None:
            raise BadInput(
                "the trials of this space cost differently and have no Renyi bound to add up: fix "
                f"{', '.join(keys_that_move_the_cost(search.space, methods.find(search.method)))}"
            )
        covers = f"the run and the search of at most {search.trials:,} trials that chose it"
        return SearchCost("compose", epsilon, search.delta, bound, covers, searched=searched)
    law = search.trial_law
    if not math.isfinite(epsilon):
        raise BadInput(
            f"a cap of {searched.cap} trials cuts a {law.name} number with mean {law.mean:g} short "
            f"so often that delta {search.delta:g} cannot cover it; {law.default_cap} always does"
        )
    covers = (
        "the run and the search that chose it as the best of a secret number of trials "
        f"({law.name}, mean {law.mean:g}, at most {searched.cap:,})"
    )
    return SearchCost("select", epsilon, search.delta, bound, covers, searched=searched)


def _searched(search: SearchSpec, trials: tuple[Trial, ...]) -> Searched:
    if search.charge == "compose":
        return Searched(charge="compose", trials=trials, num_trials=search.trials)
    law = search.trial_law
    cap = law.default_cap if search.cap is None else search.cap
    return Searched(charge="select", trials=trials, law=law, cap=cap)


def _trials(
    training: dp.DpEvent | Sequence[dp.DpEvent] | None, score: dp.DpEvent | None
) -> tuple[Trial, ...]:
    if training is None or score is None:
        raise BadInput("the cost of a charged search needs the events of training and score")
    events = [training] if isinstance(training, dp.DpEvent) else list(training)
    return tuple(Trial(event, score) for event in events)


def _least(bounds: dict[str, float | None]) -> tuple[float, str | None]:
    """The least epsilon, and which bound gave it: infinite and None where none is known."""
    known = {name: value for name, value in bounds.items() if value is not None}
    best = min(known, key=lambda name: known[name], default=None)
    return (math.inf, None) if best is None else (known[best], best)
