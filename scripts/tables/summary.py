"""A table's finished runs, put together by row, and printed as Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.commits import commits_of
from tables.costs import epsilon_of
from tables.dpmi_costs import METHOD, epsilon_of_latents
from tables.kept import Place
from tables.rows import Column, Row, Table

NOT_RUN, DIVERGED = "not run", "diverged"
TRUE_COST = "what that truly costs"


@dataclass(frozen=True)
class Spread:
    mean: float
    deviation: float | None  # None: of one run there is none

    def text(self, scale: float = 1.0, digits: int = 2) -> str:
        text = f"{scale * self.mean:.{digits}f}"
        if self.deviation is None:
            return text
        return f"{text} ± {scale * self.deviation:.{digits}f}"


@dataclass(frozen=True)
class Measured:
    """A row and its finished runs, by seed; there may be none."""

    row: Row
    runs: dict[int, dict[str, Any]]
    epsilon: float | None  # of one run; None: no privacy
    images: Path | None  # drawn by the run of the first seed

    @property
    def noise_multiplier(self) -> float | None:
        known = [run["noise_multiplier"] for run in self.runs.values()]
        return known[0] if known else self.row.noise_multiplier

    def metric(self, name: str, within: str | None = None) -> Spread | None:
        """Over the runs; of a single one `within` may name the metric that is its deviation."""
        runs = [run["metrics"] for run in self.runs.values() if name in run["metrics"]]
        if not runs:
            return None
        values = [metrics[name] for metrics in runs]
        if len(values) > 1:
            return Spread(statistics.fmean(values), statistics.stdev(values))
        return Spread(values[0], runs[0].get(within))

    def outcome(self, of_run: Callable[[Mapping[str, Any]], str]) -> str:
        """The word of every run; where they differ, how many runs it holds for."""
        words = Counter(of_run(run) for run in self.runs.values())
        if len(words) < 2:
            return next(iter(words), "-")
        return ", ".join(f"{count} {word}" for word, count in words.most_common())


def measure(row: Row, seeds: Sequence[int], folder: Path) -> Measured:
    """What is kept of a row; nothing is run."""
    places = {seed: Place(row, seed, folder) for seed in seeds}
    runs = {seed: run for seed, place in places.items() if (run := place.read()) is not None}
    images = [places[seed].images for seed in runs if places[seed].images.exists()]
    return Measured(row, runs, _epsilon(row, runs), images[0] if images else None)


def _epsilon(row: Row, runs: dict[int, dict[str, Any]]) -> float | None:
    """What the cards say; before a row has run, what it may spend or its noise will cost."""
    if runs:
        spent: float | None = next(iter(runs.values()))["epsilon"]
        return spent
    if row.noise_multiplier is None:
        return row.epsilon
    return epsilon_of_latents(row) if row.method == METHOD else epsilon_of(row)


def lined(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    rule = "|---" * len(header) + "|"
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(cells)} |" for cells in lines)]


def markdown(table: Table, dataset: str, rows: Sequence[Measured]) -> str:
    columns = [c for c in table.columns if not c.only_if_measured or _is_measured(c, rows)]
    told = any(_true_cost(measured) for measured in rows)
    header = ["row", table.published, *([TRUE_COST] if told else [])]
    header += ["epsilon", "noise multiplier"]
    header += [column.title for column in columns]
    header += ["outcome"] if table.outcome else []
    header += ["core-minutes a run", "runs"]
    told_at = commits_of(run for measured in rows for run in measured.runs.values())
    lines = [
        f"# {table.title}: {dataset}",
        "",
        *lined(header, (_cells(measured, columns, table, told) for measured in rows)),
        "",
        "Accuracy is on the public test set, once, at the end; mean and standard deviation over "
        f"the runs. Of a synthesizer it is that of {table.classifier} trained on its images alone; "
        "LR and MLP likewise. Epsilon is that of one run at delta 1e-5, add-or-remove-one; "
        "releasing all runs of a row costs more. Core-minutes are those of training.",
        *(f"\n{note}" for note in (*table.notes, told_at) if note),
    ]
    return "\n".join(lines) + "\n"


def _is_measured(column: Column, rows: Sequence[Measured]) -> bool:
    return any(measured.metric(column.metric) is not None for measured in rows)


def _true_cost(measured: Measured) -> str:
    return measured.row.published.true_cost if measured.row.published else ""


def _cells(
    measured: Measured, columns: Sequence[Column], table: Table, true_cost_is_told: bool
) -> list[str]:
    row, seconds = measured.row, measured.metric("core_seconds")
    # The clock of a run that was taken up again began anew: it took longer than it says.
    resumed = any(run["resumed"] for run in measured.runs.values())
    minutes = f"{'over ' if resumed else ''}{seconds.mean / 60:.1f}" if seconds else "-"
    return [
        row.label,
        str(row.published or "-"),
        *([_true_cost(measured) or "-"] if true_cost_is_told else []),
        shown_epsilon(measured),
        f"{measured.noise_multiplier:.3g}" if measured.noise_multiplier is not None else "-",
        *_figures(measured, columns),
        *([measured.outcome(table.outcome)] if table.outcome else []),
        minutes,
        str(len(measured.runs)),
    ]


def _figures(measured: Measured, columns: Sequence[Column]) -> list[str]:
    found = [(column, measured.metric(column.metric, column.within)) for column in columns]
    texts = [
        spread.text(column.scale, column.digits) if spread else "-" for column, spread in found
    ]
    if not measured.runs:
        return [NOT_RUN, *texts[1:]]
    if any("diverged" in run for run in measured.runs.values()) and found[0][1] is None:
        return [DIVERGED, *texts[1:]]
    return texts


def shown_epsilon(measured: Measured) -> str:
    epsilon = measured.epsilon
    if epsilon is None:
        return "infinite"
    return f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.4g}"
