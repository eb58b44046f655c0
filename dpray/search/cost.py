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
from dpray.privacy.selection import Trial, cost_of_composition, cost_of_selection
from dpray.privacy.selection_profiles import CurveAccountant, KnownRenyiEvent, renyi_of
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
        }


def cost_beforehand(
    search: SearchSpec, facts: DataFacts, progress: Progress = silent
) -> SearchCost:
    """The cost of a search on records of which `facts` are public. No record is read."""
    if search.charge in ("public", "none"):
        return search_cost(search)
    events = possible_events(search, facts, progress)
    return search_cost(search, events, score_event(search.budget, search.adjacency))


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
    trials = _trials(training_event, score_event)
    if search.charge == "compose":
        epsilon, bound = _composed(trials, search)
        covers = f"the run and the search of at most {search.trials:,} trials that chose it"
        return SearchCost("compose", epsilon, search.delta, bound, covers)
    law = search.trial_law
    found = cost_of_selection(trials, law, search.delta, cap=search.cap, adjacency=search.adjacency)
    if not math.isfinite(found.epsilon):
        raise BadInput(
            f"a cap of {found.cap} trials cuts a {law.name} number with mean {law.mean:g} short so "
            f"often that delta {search.delta:g} cannot cover it; {law.default_cap} always does"
        )
    covers = (
        "the run and the search that chose it as the best of a secret number of trials "
        f"({law.name}, mean {law.mean:g}, at most {found.cap:,})"
    )
    return SearchCost("select", found.epsilon, search.delta, _least(found.by_bound()), covers)


def _trials(
    training: dp.DpEvent | Sequence[dp.DpEvent] | None, score: dp.DpEvent | None
) -> list[Trial]:
    if training is None or score is None:
        raise BadInput("the cost of a charged search needs the events of training and score")
    events = [training] if isinstance(training, dp.DpEvent) else list(training)
    return [Trial(event, score) for event in events]


def _composed(trials: list[Trial], search: SearchSpec) -> tuple[float, str]:
    """Epsilon of all declared trials, each charged with any of these events.

    Guarantee: a sampler that looks back may choose the event of a trial by what came before. The
    largest Renyi divergence of any event bounds each trial whatever that was, so it adds up.
    """
    if len(trials) == 1:
        found = cost_of_composition(
            trials[0], search.trials, search.delta, adjacency=search.adjacency
        )
        return found.epsilon, _least(found.by_accountant())
    epsilons = []
    for events in zip(*(one.parts(search.adjacency) for one in trials), strict=True):
        curve = renyi_of(events, search.adjacency)
        if curve is None:
            raise BadInput(
                "the trials of this space cost differently and have no Renyi bound to add up: fix "
                f"{', '.join(keys_that_move_the_cost(search.space, methods.find(search.method)))}"
            )
        accountant = CurveAccountant()
        accountant.compose(KnownRenyiEvent(tuple(curve)), search.trials)
        epsilons.append(accountant.epsilon(search.delta))
    return max(epsilons), "rdp"


def _least(bounds: dict[str, float | None]) -> str:
    known = {name: value for name, value in bounds.items() if value is not None}
    return min(known, key=lambda name: known[name])
