"""The page itself: what is said, in which order, around the tables and plots."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from dpray import __version__
from dpray.evaluation.recorded import RecordedRun
from dpray.reporting.groups import Figure, Group
from dpray.reporting.markup import Html, join, tag
from dpray.reporting.plots import accuracy_plot
from dpray.reporting.published import Published, numbered_sources, published_on, to_draw
from dpray.reporting.style import STYLE
from dpray.reporting.tables import (
    epsilon_words,
    ledger_table,
    published_table,
    runs_table,
)

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
    by_dataset: Mapping[str, Sequence[Group]], *, cards: Mapping[str, str], made: datetime
) -> str:
    """The whole document. `cards` are the addresses of the cards by run id, without ending."""
    groups = [group for rows in by_dataset.values() for group in rows]
    anchors = {dataset: f"dataset-{number}" for number, dataset in enumerate(by_dataset, 1)}
    methods = sorted({group.method for group in groups})
    sections = [
        _section(dataset, rows, cards, anchors[dataset], methods)
        for dataset, rows in by_dataset.items()
    ]
    links = [
        join(tag("a", rows[0].card.dataset, href=f"#{anchors[dataset]}"), " ")
        for dataset, rows in by_dataset.items()
    ]
    body = tag(
        "body",
        tag(
            "header",
            tag("h1", "Differentially private runs"),
            tag("p", _made_words(groups, made), class_="made"),
            tag("p", _EPSILON),
            _notice(groups),
            tag("nav", tag("p", "Datasets: ", *links), aria_label="Datasets"),
        ),
        tag("main", *sections),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "dpray report"),
        tag("style", Html(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _made_words(groups: Sequence[Group], made: datetime) -> str:
    count = sum(len(group.runs) for group in groups)
    runs = "1 run" if count == 1 else f"{count} runs"
    return f"dpray {__version__}, {runs}, made on {made:%Y-%m-%d at %H:%M %Z}".strip()


def _notice(groups: Sequence[Group]) -> Html:
    unfit = sum(len(group.runs) for group in groups if group.reasons_against)
    if not unfit:
        return Html("")
    count = sum(len(group.runs) for group in groups)
    words = (
        f"Not fit for release: {unfit} of {count} on this page; the tables say why. What such a "
        "run shows is as private as its records: where those are not public, keep this page to "
        "yourself."
    )
    return tag("p", words, class_="notice")


def _section(
    dataset: str,
    groups: Sequence[Group],
    cards: Mapping[str, str],
    anchor: str,
    methods: Sequence[str],
) -> Html:
    name = groups[0].card.dataset
    return tag(
        "section",
        tag("h2", name, id=anchor),
        tag("h3", "Runs"),
        runs_table(name, groups, cards),
        _metric_words(groups),
        _plots(dataset, name, groups, methods),
        _samples(name, groups),
        tag("h3", "Where the budget went"),
        tag("p", _BUDGET),
        *(ledger_table(group.first) for group in groups),
        _published(dataset, name),
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


def _plots(dataset: str, name: str, groups: Sequence[Group], methods: Sequence[str]) -> Html:
    published = to_draw(dataset)
    if sum(group.accuracy is not None for group in groups) + len(published) < 2:
        return Html("")  # one point is no plot
    labels = {f: f"{f.method} [{numbered_sources(dataset)[f.source]}]" for f in published}
    described = f"Plot of test accuracy against epsilon on {name}; the tables hold its numbers"
    both = [
        tag(
            "div",
            accuracy_plot(groups, labels, methods=methods, narrow=narrow, described_as=described),
            class_="narrow" if narrow else "wide",
        )
        for narrow in (False, True)
    ]
    return join(
        tag("h3", "Accuracy against epsilon"),
        tag("figure", *both, tag("figcaption", _plot_words(published))),
    )


def _plot_words(published: Sequence[Published]) -> str:
    words = (
        "Points are the runs above, with one standard deviation where there are several seeds; "
        "a dashed line is the best run without privacy."
    )
    if published:
        words += " Grey bars are figures others published, each named with its source."
    if any(figure.epsilon is None for figure in published):
        words += " Grey triangles on the edge were published without an epsilon."
    if published:
        words += (
            " Published figures were not measured here, and their protocols differ from ours "
            "and from each other: the sources stand at the end of the section."
        )
    return words


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


def _published(dataset: str, name: str) -> Html:
    figures = published_on(dataset)
    if not figures:
        return Html("")
    sources = numbered_sources(dataset)
    protocols = [tag("li", tag("b", s.name), ". ", s.protocol) for s in sources]
    return join(
        tag("h3", "Published, not measured here"),
        tag(
            "p",
            "What others report. Their protocols differ, so compare within one source, and "
            "with our runs only as a rough mark.",
        ),
        tag(
            "details",
            tag("summary", f"{len(figures)} published figures on {name}"),
            published_table(name, figures, sources),
        ),
        tag("ol", *protocols, class_="protocols"),
    )
