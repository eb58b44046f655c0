"""The comparison: all methods on one page, epsilon against accuracy, with what each costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from dpray.reporting.comparison_tables import comparison_table, published_table
from dpray.reporting.document import (
    anchors_of,
    dataset_links,
    document,
    made_words,
    unfit_notice,
)
from dpray.reporting.groups import Group
from dpray.reporting.markup import Html, join, tag
from dpray.reporting.plots import CLAIMED, accuracy_plot
from dpray.reporting.published import Published, numbered_sources, published_on, to_draw

TITLE = "dpray comparison"
_INTRODUCTION = (
    "Every method that was run, at every epsilon, on each dataset. Of a classifier the test "
    "accuracy is its own; of a synthesizer it is that of a network which was trained on synthetic "
    "images alone (a CNN, or ConvNets for a small set of images) and tested on real ones; MLP and "
    "LR are other classifiers trained so. Core-minutes are those of training one run. Runs of one "
    "method, epsilon and settings are one row."
)


def comparison_page(
    by_dataset: Mapping[str, Sequence[Group]], *, figures: Mapping[str, Html], made: datetime
) -> str:
    """The whole document. `figures` are the plots by dataset, as `accuracy_figure` makes them."""
    groups = [group for rows in by_dataset.values() for group in rows]
    anchors = anchors_of(by_dataset)
    return document(
        TITLE,
        tag(
            "header",
            tag("h1", "All methods compared"),
            tag("p", made_words(groups, made), class_="made"),
            tag("p", _INTRODUCTION),
            unfit_notice(groups),
            tag(
                "nav",
                tag("p", tag("a", "Samples, ledgers and privacy cards", href="index.html")),
                dataset_links(by_dataset),
                aria_label="Pages and datasets",
            ),
        ),
        tag(
            "main",
            *(
                tag(
                    "section",
                    tag("h2", rows[0].card.dataset, id=anchors[dataset]),
                    figures[dataset],
                    comparison_table(dataset, rows[0].card.dataset, rows),
                    _domain_words(rows),
                    _published(dataset, rows[0].card.dataset),
                )
                for dataset, rows in by_dataset.items()
            ),
        ),
    )


def accuracy_figure(dataset: str, groups: Sequence[Group], methods: Sequence[str]) -> Html:
    """Accuracy against epsilon for windows of both widths, with its caption; all runs and more.

    A method's place in `methods` decides its colour and marker.
    """
    published = to_draw(dataset)
    if sum(group.accuracy is not None for group in groups) + len(published) < 1:
        return Html("")
    name, sources = groups[0].card.dataset, numbered_sources(dataset)
    labels = {figure: f"{figure.method} [{sources[figure.source]}]" for figure in published}
    described = f"Plot of test accuracy against epsilon on {name}; the tables hold its numbers"
    both = [
        tag(
            "div",
            accuracy_plot(groups, labels, methods=methods, narrow=narrow, described_as=described),
            class_="narrow" if narrow else "wide",
        )
        for narrow in (False, True)
    ]
    return tag("figure", *both, tag("figcaption", _caption(groups, published)))


def _caption(groups: Sequence[Group], published: Sequence[Published]) -> str:
    words = (
        "Filled marks are runs, with one standard deviation where there are several seeds. A name "
        "stands at the best of its method at an epsilon, with its accuracy and, in a wide window, "
        "its core-minutes; where epsilons lie close to each other, at the largest of them. Marks "
        "of one shape and colour are one method."
    )
    if any(not group.is_private for group in groups):
        words += " A dashed line is the best run without privacy."
    if any(group.is_private and group.reasons_against for group in groups):
        words += " Crossed out is what is not fit for release."
    if any(figure.epsilon is not None for figure in published):
        words += (
            " Hollow marks are figures others published, each with the number of its source, at "
            f"the epsilon they claim; {CLAIMED} means that it does not withstand recomputing."
        )
    if any(figure.epsilon is None for figure in published):
        words += " Hollow triangles on the edge were published without an epsilon."
    if published:
        words += (
            " Published figures were not measured here, and their protocols differ from ours "
            "and from each other: the sources stand at the end of the comparison."
        )
    return words


def _domain_words(groups: Sequence[Group]) -> Html:
    if not any(group.figure("domain_fid") for group in groups):
        return Html("")
    words = (
        "FID marked as domain rests on a network for this kind of image, not on Inception: it "
        "does not compare with published ones."
    )
    return tag("p", tag("small", words))


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
