"""Recorded runs put together: the seeds of one specification are one row with mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dpray.errors import LedgerDamaged
from dpray.evaluation.recorded import RecordedRun
from dpray.privacy.accounting import cost_of
from dpray.privacy.card import Card, epsilon_at, verify
from dpray.privacy.ledger import Ledger, ledger_from_json

# The accuracy a row is sorted and drawn by, where a synthesizer has one for each classifier.
_HEADLINES = ("test_accuracy", "cnn_accuracy", "mlp_accuracy", "lr_accuracy")


@dataclass(frozen=True)
class Figure:
    """A metric over the runs of a group."""

    mean: float
    spread: float | None  # standard deviation; None where there is one value only


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    runs: tuple[RecordedRun, ...]

    @property
    def first(self) -> RecordedRun:
        return self.runs[0]

    @property
    def card(self) -> Card:
        return self.first.card

    @property
    def method(self) -> str:
        return self.first.method

    @property
    def kind(self) -> str:
        return self.first.kind

    @cached_property
    def epsilon(self) -> float:
        """Of one run: the largest of them, should they differ beyond the digits shown."""
        return max(_epsilon(run) for run in self.runs)

    @property
    def is_private(self) -> bool:
        return math.isfinite(self.epsilon)

    @cached_property
    def epsilon_of_all(self) -> float:
        """What it costs to release every run of the group, all of them on the same records."""
        if any(run.card.search is not None for run in self.runs):
            return self._epsilon_of_searches()
        ledgers = [ledger_from_json(dict(run.card.ledger)) for run in self.runs]
        entries = [entry for ledger in ledgers for entry in ledger.entries]
        if len({entry.part for entry in entries}) > 1:
            return Ledger(ledgers[0].budget, ledgers[0].adjacency, entries).epsilon
        # Coarse: a tenth of the time for each row, and an upper bound all the same.
        events = [entry.event for entry in entries]
        return cost_of(events, self.card.delta, ledgers[0].adjacency, coarse=True).epsilon

    def _epsilon_of_searches(self) -> float:
        """Searches have no event to compose: their epsilons add up, each at its share of delta."""
        cards = [run.card for run in self.runs]
        return sum(epsilon_at(card, card.delta / len(cards)) for card in cards)

    @cached_property
    def reasons_against(self) -> tuple[str, ...]:
        """Why not to release these runs. A card that its own events contradict is a reason."""
        reasons: list[str] = []
        for run in self.runs:
            reasons.extend(run.card.reasons_against)
            if not run.card.fit_for_release and not run.card.reasons_against:
                reasons.append("its card says so and names no reason")
            try:
                verify(run.card)
            except LedgerDamaged as error:
                reasons.append(f"the card of {run.run_id} cannot be trusted: {error}")
        return tuple(dict.fromkeys(reasons))

    def figure(self, name: str) -> Figure | None:
        values = [run.metrics[name] for run in self.runs if name in run.metrics]
        if not values:
            return None
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Figure(statistics.fmean(values), spread)

    @cached_property
    def headline(self) -> str | None:
        """The name of the accuracy that counts, or None where none was measured."""
        known = [*_HEADLINES, *self.accuracies()]
        return next((name for name in known if self.figure(name)), None)

    @property
    def accuracy(self) -> Figure | None:
        return None if self.headline is None else self.figure(self.headline)

    def accuracies(self) -> list[str]:
        """Every `<classifier>_accuracy` there is."""
        names = {name for run in self.runs for name in run.metrics}
        return sorted(name for name in names if name.endswith("_accuracy"))

    def best_run(self, runs: Iterable[RecordedRun]) -> RecordedRun | None:
        """The most accurate of these runs, or the first where nothing tells them apart."""
        name = self.headline or ""
        return max(runs, key=lambda run: run.metrics.get(name, -math.inf), default=None)


def _epsilon(run: RecordedRun) -> float:
    return math.inf if run.card.epsilon is None else run.card.epsilon


def group_runs(runs: Iterable[RecordedRun]) -> dict[str, list[Group]]:
    """Groups by dataset: datasets by name, groups by epsilon, then the most accurate first."""
    found: dict[tuple[object, ...], list[RecordedRun]] = {}
    for run in runs:
        key = (
            run.dataset,
            run.method,
            f"{_epsilon(run):.3g}",
            run.card.delta,
            run.card.adjacency,
            run.card.covers,
            tuple(sorted(run.settings.items())),
        )
        found.setdefault(key, []).append(run)
    by_dataset: dict[str, list[Group]] = {}
    for together in found.values():
        group = Group(tuple(sorted(together, key=lambda run: (run.seed, run.started))))
        by_dataset.setdefault(group.first.dataset, []).append(group)
    order = sorted(by_dataset, key=lambda dataset: (by_dataset[dataset][0].card.dataset, dataset))
    return {dataset: sorted(by_dataset[dataset], key=_order) for dataset in order}


def _order(group: Group) -> tuple[float, float, str]:
    accuracy = -group.accuracy.mean if group.accuracy else math.inf
    return (float(f"{group.epsilon:.3g}"), accuracy, group.method)


def what_differs(group: Group, groups: Iterable[Group]) -> Mapping[str, str]:
    """Settings in which a group differs from another one of its method: they tell rows apart."""
    others = [g.first.settings for g in groups if g.method == group.method]
    own = group.first.settings
    names = sorted({name for settings in others for name in settings})
    return {
        name: own.get(name, "-")
        for name in names
        if len({settings.get(name) for settings in others}) > 1
    }
