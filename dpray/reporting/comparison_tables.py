"""The tables of the comparison: all methods beside what was published, and all published figures.

A published figure is never in a column of measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dpray.reporting.groups import Group
from dpray.reporting.markup import Html, join, tag
from dpray.reporting.published import Published, PublishedSource, numbered_sources, published_of
from dpray.reporting.tables import (
    DASH,
    FID,
    accuracy_cell,
    core_minutes,
    epsilon_cell,
    epsilon_words,
    fidelity_cell,
    first_of,
    settings_cell,
    table,
    verdict_cell,
)
from dpray.reporting.true_costs import true_cost_of

TRUE_COST = "What the published one truly costs"
# Beside the headline: of synthesizers, where they were measured.
_OTHERS = {"mlp_accuracy": "MLP, %", "lr_accuracy": "LR, %"}


def comparison_table(dataset: str, name: str, groups: Sequence[Group]) -> Html:
    """One row a group, by epsilon and then by accuracy; the order is that of `groups`."""
    others = [n for n in _OTHERS if any(group.figure(n) for group in groups)]
    with_fid = any(first_of(group, FID)[0] for group in groups)
    theirs = [_published_beside(dataset, group) for group in groups]
    header = [
        "Method",
        "Kind",
        "Epsilon",
        "Epsilon covers",
        "Runs",
        "Test accuracy, %",
        *(_OTHERS[n] for n in others),
        *(["FID"] if with_fid else []),
        "Core-minutes a run",
        "Fit for release",
        *(["Published, not measured here, %", TRUE_COST] if any(theirs) else []),
    ]
    rows = [
        [
            join(tag("b", group.method), settings_cell(group, groups)),
            group.kind,
            epsilon_cell(group, with_cover=False),
            group.card.covers,
            len(group.runs),
            accuracy_cell(group, group.headline) if group.headline else DASH,
            *(accuracy_cell(group, n) for n in others),
            *([fidelity_cell(group, FID)] if with_fid else []),
            core_minutes(group),
            verdict_cell(group),
            *([_figures(dataset, found), _true_costs(found)] if any(theirs) else []),
        ]
        for group, found in zip(groups, theirs, strict=True)
    ]
    return table(f"All methods on {name}: mean ± standard deviation over the runs", header, rows)


def _published_beside(dataset: str, group: Group) -> list[Published]:
    """Figures of the same method at the epsilon that the row has, by a convolutional classifier."""
    epsilon = float(f"{group.epsilon:.2g}")
    found = published_of(dataset, group.method, epsilon)
    return [f for f in found if f.classifier not in ("LR", "MLP") and not f.is_variant]


def _figures(dataset: str, figures: Sequence[Published]) -> object:
    numbers = numbered_sources(dataset)
    words = [f"{100 * f.accuracy:.1f} [{numbers[f.source]}]" for f in figures]
    return tag("span", *(tag("span", one, class_="card-link") for one in words)) if words else DASH


def _true_costs(figures: Sequence[Published]) -> str:
    costs = [cost.words for figure in figures if (cost := true_cost_of(figure)) is not None]
    return "; ".join(dict.fromkeys(costs)) or DASH


def published_table(
    name: str, published: Sequence[Published], numbers: Mapping[PublishedSource, int]
) -> Html:
    rows = [
        (
            figure.method,
            "not stated" if figure.epsilon is None else epsilon_words(figure.epsilon),
            f"{100 * figure.accuracy:.1f}",
            figure.classifier,
            f"[{numbers[figure.source]}]",
            _true_costs([figure]),
        )
        for figure in sorted(published, key=lambda f: (f.epsilon or math.inf, -f.accuracy))
    ]
    header = ("Method", "Epsilon, claimed", "Accuracy, %", "Classifier", "Source", TRUE_COST)
    return table(f"Published figures on {name}, not measured here", header, rows)
