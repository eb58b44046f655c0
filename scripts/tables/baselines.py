"""Methods of others side by side at honest budgets, beside what they published and what that costs.

Figures of one cell come from different protocols: the paper's own or one that quotes it, and two
re-measurements, SoK (SoK-PPDS) and DPImageBench. They compare within a source and not across.
A row is there when its method is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpray import methods
from dpray.reporting.published import (
    DP_IMAGE_BENCH,
    OWN_CLAIM,
    PRIVATE_SET,
    SOK,
    Published,
    PublishedSource,
    published_of,
    published_on,
)
from dpray.reporting.true_costs import true_cost
from tables.rows import DOMAIN_FID, HEADLINE, LR, MLP, Column, PublishedFigure, Row, Table
from tables.summary import DIVERGED

METHODS = (
    "dp-gan",
    "dp-cgan",
    "gs-wgan",
    "dp-sinkhorn",
    "pate-gan",
    "g-pate",
    "datalens",
    "vaegm",
    "dp-kvae",
    "dp-merf",
)
LEARNS_NOTHING, LEARNS = "learns nothing", "learns"
LEAST_ACCURACY = 0.15  # of ten classes, where guessing gives 0.1
_EPSILONS = (10.0, 1.0)


_NO_FIGURE = {"pate-gan": "SoK: cannot learn images"}


def outcome(run: Mapping[str, Any]) -> str:
    """Of one kept run. A method that learns nothing at that budget says so in its row."""
    if "diverged" in run:
        return DIVERGED
    accuracy = run["metrics"].get(HEADLINE.metric)
    if accuracy is None:
        return "-"
    return LEARNS_NOTHING if accuracy < LEAST_ACCURACY else LEARNS


def _percent(figures: Sequence[Published], *sources: PublishedSource) -> float | None:
    return next((100 * f.accuracy for f in figures if f.source in sources), None)


def _figure(method: str, dataset: str, epsilon: float) -> PublishedFigure | None:
    figures = published_of(dataset, method, epsilon)
    remeasured = {"SoK": SOK, "DPImageBench": DP_IMAGE_BENCH}
    percents = {name: _percent(figures, source) for name, source in remeasured.items()}
    others = ", ".join(f"{n} {percent:.1f}" for n, percent in percents.items() if percent)
    words = others or (_NO_FIGURE.get(method, "") if published_on(dataset) else "")
    own = _percent(figures, PRIVATE_SET, OWN_CLAIM)
    if own is None and not words:
        return None
    cost = true_cost(method, epsilon)
    return PublishedFigure(
        None if own is None else own / 100,
        epsilon=epsilon,
        others=words,
        holds=cost is not None and cost.holds,
        true_cost="" if cost is None else cost.words,
    )


def _rows(dataset: str) -> list[Row]:
    known = methods.table()
    return [
        Row(
            label=f"{method}, epsilon {epsilon:g}",
            series=method,
            method=method,
            dataset=dataset,
            epsilon=epsilon,
            published=_figure(method, dataset, epsilon),
        )
        for method in METHODS
        if method in known
        for epsilon in _EPSILONS
    ]


TABLE = Table(
    name="baselines",
    title="Synthesis by methods of others, at honest budgets",
    rows=_rows,
    notes=(
        "Published: first the paper's own figure or one that quotes it, then what SoK (SoK-PPDS) "
        "and DPImageBench measured. Protocols differ by more than ten points: some choose the "
        "best epoch on the test set. The epsilon beside a figure is the one that was claimed.",
        "What that truly costs: the published configuration, recomputed for what its code or text "
        "does. Rows here take corrected mechanisms and the settings of preset laptop, and the "
        "noise is calibrated to what is asked.",
        "VaeGM and DP-kVAE published no such accuracy. PATE-GAN was made for tables.",
        f"Outcome: {LEARNS_NOTHING} where the CNN is right on less than {LEAST_ACCURACY:.0%} of "
        "ten classes.",
    ),
    datasets=("mnist", "fashion-mnist", "digits"),
    columns=(Column("CNN (test accuracy), %", HEADLINE.metric), LR, MLP, DOMAIN_FID),
    outcome=outcome,
)
