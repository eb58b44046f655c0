"""What the pages of a report share: the document around them, and the words that open them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from dpray import __version__
from dpray.reporting.groups import Group
from dpray.reporting.markup import Html, join, tag
from dpray.reporting.style import STYLE


def document(title: str, *body: Html) -> str:
    """A whole page, with its style inside."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"


def made_words(groups: Sequence[Group], made: datetime) -> str:
    count = sum(len(group.runs) for group in groups)
    runs = "1 run" if count == 1 else f"{count} runs"
    return f"dpray {__version__}, {runs}, made on {made:%Y-%m-%d at %H:%M %Z}".strip()


def unfit_notice(groups: Sequence[Group]) -> Html:
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


def anchors_of(by_dataset: Mapping[str, Sequence[Group]]) -> dict[str, str]:
    """The address of a dataset's section, the same on every page."""
    return {dataset: f"dataset-{number}" for number, dataset in enumerate(by_dataset, 1)}


def dataset_links(by_dataset: Mapping[str, Sequence[Group]]) -> Html:
    anchors = anchors_of(by_dataset)
    links = [
        join(tag("a", rows[0].card.dataset, href=f"#{anchors[dataset]}"), " ")
        for dataset, rows in by_dataset.items()
    ]
    return tag("p", "Datasets: ", *links)
