"""The page itself: what is said, in which order, around the tables and plots."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from dpray.evaluation.recorded import RecordedRun
from dpray.reporting.document import (
    anchors_of,
    dataset_links,
    document,
    made_words,
    unfit_notice,
)
from dpray.reporting.groups import Figure, Group
from dpray.reporting.markup import Html, join, tag
from dpray.reporting.tables import epsilon_words, ledger_table, runs_table

TITLE = "dpray report"
COMPARISON = "comparison.html"
_PNG = b"\x89PNG\r\n\x1a\n"
_EPSILON = (
    "Epsilon bounds what one run gives away about any one record (an image and its label): "
    "adding that record to the private data, or removing it, changes the probability of any "
    "outcome of the run by a factor of at most e to the power of epsilon, except for a "
    "probability of about delta. Less is more private; infinite means no protection at all. "
    "Each epsilon on this page is that of one run alone or, where its row says so, of the run and "
    "the search that chose it. Where a row sums up several runs, each has this epsilon; to release "
    "them all costs more, and the row says how much."
)
_BUDGET = (
    "For one run of each row: every query that read private records, and what it would cost if "
    "it were the only one. Costs do not simply add up: queries on the same records compose to "
    "less than their sum, and different parts of the records are disjoint, so that the "
    "costliest part is the epsilon of the run."
)


def page(
    by_dataset: Mapping[str, Sequence[Group]],
    *,
    figures: Mapping[str, Html],
    cards: Mapping[str, str],
    made: datetime,
) -> str:
    """The whole document.

    `figures` are the plots by dataset, `cards` the addresses of the cards by run id, without
    ending.
    """
    groups = [group for rows in by_dataset.values() for group in rows]
    anchors = anchors_of(by_dataset)
    comparison = tag("a", "All methods compared on one page", href=COMPARISON)
    return document(
        TITLE,
        tag(
            "header",
            tag("h1", "Differentially private runs"),
            tag("p", made_words(groups, made), class_="made"),
            tag("p", _EPSILON),
            unfit_notice(groups),
            tag(
                "nav",
                tag("p", comparison, ": epsilon, accuracy, cost, and what others published"),
                dataset_links(by_dataset),
                aria_label="Pages and datasets",
            ),
        ),
        tag(
            "main",
            *(
                _section(rows, cards, anchors[dataset], figures[dataset])
                for dataset, rows in by_dataset.items()
            ),
        ),
    )


def _section(groups: Sequence[Group], cards: Mapping[str, str], anchor: str, figure: Html) -> Html:
    name = groups[0].card.dataset
    more = tag("a", "the comparison", href=f"{COMPARISON}#{anchor}")
    return tag(
        "section",
        tag("h2", name, id=anchor),
        tag("h3", "Runs"),
        runs_table(name, groups, cards),
        _metric_words(groups),
        join(
            tag("h3", "Accuracy against epsilon"),
            figure,
            tag("p", "With its numbers and sources: ", more, "."),
        )
        if figure
        else "",
        _samples(name, groups),
        tag("h3", "Where the budget went"),
        tag("p", _BUDGET),
        *(ledger_table(group.first) for group in groups),
    )


def _metric_words(groups: Sequence[Group]) -> Html:
    """What the columns of a synthesizer mean, where there are such columns."""
    names = {name for group in groups for run in group.runs for name in run.metrics}
    words = []
    if names & {"lr_accuracy", "mlp_accuracy", "cnn_accuracy"}:
        words.append(
            "LR, MLP and CNN are classifiers trained on synthetic images alone and tested on "
            "real ones."
        )
    if names & {"domain_fid", "domain_is"}:
        words.append(
            "FID and IS marked as domain rest on a network for this kind of image, not on "
            "Inception: they do not compare with published ones."
        )
    return tag("p", tag("small", " ".join(words))) if words else Html("")


def _samples(name: str, groups: Sequence[Group]) -> Html:
    """One grid a group: that of its most accurate run."""
    figures = []
    for group in groups:
        run = group.best_run(r for r in group.runs if r.samples and r.samples.startswith(_PNG))
        if run is not None:
            figures.append(_grid(name, group, run))
    if not figures:
        return Html("")
    return join(tag("h3", "Samples"), tag("div", *figures, class_="samples"))


def _grid(name: str, group: Group, run: RecordedRun) -> Html:
    assert run.samples is not None
    picture = base64.b64encode(run.samples).decode()
    at = f"epsilon {epsilon_words(group.epsilon)}"
    unfit = join(" ", tag("span", "Not fit for release.", class_="no"))
    caption = tag(
        "figcaption",
        tag("b", run.method),
        f" on {name}, {at}{_accuracy_words(group)}.",
        unfit if group.reasons_against else "",
    )
    image = tag(
        "img",
        src=f"data:image/png;base64,{picture}",
        alt=f"Grid of synthetic images by {run.method} on {name} at {at}",
    )
    return tag("figure", image, caption)


def _accuracy_words(group: Group) -> str:
    if group.headline is None or group.accuracy is None:
        return ""
    classifier = re.sub("_?accuracy$", "", group.headline).replace("_", " ")
    kind = "test accuracy" if classifier == "test" else f"accuracy of {classifier}"
    return f", {kind} {percent_words(group.accuracy)} %"


def percent_words(figure: Figure) -> str:
    mean = f"{100 * figure.mean:.2f}"
    return mean if figure.spread is None else f"{mean} ± {100 * figure.spread:.2f}"
