"""The tables of the page: runs, and where the budget went.

Every cell carries its column's name, by which a narrow window shows a row as a small card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dpray.evaluation.recorded import RecordedRun
from dpray.privacy.accounting import Adjacency, cost_of
from dpray.privacy.events import describe
from dpray.privacy.ledger import Entry, ledger_from_json
from dpray.reporting.groups import Figure, Group, what_differs
from dpray.reporting.markup import Html, join, tag

DASH = "–"  # noqa: RUF001
_CLASSIFIERS = {
    "test_accuracy": "Accuracy, %",
    "lr_accuracy": "LR, %",
    "mlp_accuracy": "MLP, %",
    "cnn_accuracy": "CNN, %",
    "convnet_accuracy": "ConvNet, %",
}
# The first name that was measured counts; the note says what kind of figure it is.
FID = (("fid", ""), ("domain_fid", "domain"))
_IS = (("inception_score", ""), ("domain_is", "domain"))


def epsilon_words(epsilon: float) -> str:
    return f"{epsilon:.3g}" if math.isfinite(epsilon) else "infinite"


def delta_words(delta: float) -> str:
    return f"{delta:g}".replace("e-0", "e-")


def number_cell(figure: Figure | None, factor: float = 1) -> object:
    if figure is None:
        return DASH
    mean = tag("span", f"{factor * figure.mean:.2f}", class_="number")
    if figure.spread is None:
        return mean
    return join(mean, tag("span", f" ± {factor * figure.spread:.2f}", class_="spread"))


def table(
    caption: object, header: Sequence[str], rows: Sequence[Sequence[object]], foot: object = None
) -> Html:
    """The first cell of a row is its heading."""
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(
                tag(
                    "td",
                    tag("span", cell),
                    data_label=name,
                    # A narrow window leaves out what was not measured.
                    class_="nothing" if cell == DASH else None,
                )
                for name, cell in zip(header[1:], row[1:], strict=True)
            ),
        )
        for row in rows
    ]
    last = tag("tfoot", tag("tr", tag("td", foot, colspan=len(header)))) if foot else ""
    return tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), last)


def runs_table(name: str, groups: Sequence[Group], cards: Mapping[str, str]) -> Html:
    """One row a group. `cards` are the addresses of the cards by run id, without ending."""
    accuracies = _accuracy_columns(groups)
    fidelity = [
        (title, kinds)
        for title, kinds in (("FID", FID), ("IS", _IS))
        if any(first_of(group, kinds)[0] for group in groups)
    ]
    header = [
        "Method",
        "Epsilon",
        "Delta",
        "Runs",
        *accuracies.values(),
        *(title for title, _ in fidelity),
        "Core-minutes",
        "Fit for release",
        "Privacy cards",
    ]
    rows = [
        [
            join(tag("b", group.method), settings_cell(group, groups)),
            epsilon_cell(group),
            tag("span", delta_words(group.card.delta), class_="number"),
            len(group.runs),
            *(accuracy_cell(group, column) for column in accuracies),
            *(fidelity_cell(group, kinds) for _, kinds in fidelity),
            core_minutes(group),
            verdict_cell(group),
            _card_links(group, cards),
        ]
        for group in groups
    ]
    return table(f"Runs on {name}: mean ± standard deviation over the seeds", header, rows)


def _accuracy_columns(groups: Sequence[Group]) -> dict[str, str]:
    names = {name for group in groups for name in group.accuracies()}
    known = [name for name in _CLASSIFIERS if name in names or name == "test_accuracy"]
    others = sorted(names - _CLASSIFIERS.keys())
    titles = {name: f"{name.removesuffix('_accuracy')}, %" for name in others}
    if "test_accuracy" not in names and (others or len(known) > 1):
        known.remove("test_accuracy")
    return {**{name: _CLASSIFIERS[name] for name in known}, **titles}


def accuracy_cell(group: Group, name: str) -> object:
    number = number_cell(group.figure(name), 100)
    if any(name in run.noisy for run in group.runs):
        return join(number, " ", tag("small", "noisy count on a private hold-out"))
    return number


def first_of(group: Group, kinds: Sequence[tuple[str, str]]) -> tuple[Figure | None, str]:
    found = ((group.figure(name), note) for name, note in kinds)
    return next(((figure, note) for figure, note in found if figure), (None, ""))


def fidelity_cell(group: Group, kinds: Sequence[tuple[str, str]]) -> object:
    figure, note = first_of(group, kinds)
    return join(number_cell(figure), " ", tag("small", note)) if note else number_cell(figure)


def core_minutes(group: Group) -> str:
    figure = group.figure("core_seconds")
    return DASH if figure is None else f"{figure.mean / 60:.3g}"


def epsilon_cell(group: Group, *, with_cover: bool = True) -> Html:
    """`with_cover`: what it covers stands here too, unless that is one run."""
    notes = []
    if group.is_private and len(group.runs) > 1:
        notes.append(f"{epsilon_words(group.epsilon_of_all)} to release all {len(group.runs)} runs")
    if group.card.adjacency != Adjacency.ADD_REMOVE:
        notes.append(group.card.adjacency)
    if with_cover and group.card.covers != "one run":
        notes.append(f"covers {group.card.covers}")
    small = [join(" ", tag("small", note)) for note in notes]
    return join(tag("b", epsilon_words(group.epsilon)), *small)


def _short(value: str) -> str:
    """A number with four digits: those that a search drew have many more."""
    try:
        number = float(value)
    except ValueError:
        return value
    return value if len(value) <= 6 else f"{number:.4g}"


def settings_cell(group: Group, groups: Sequence[Group]) -> Html:
    """What tells this row from others of its method; all settings on demand."""
    differing = ", ".join(f"{n}={_short(v)}" for n, v in what_differs(group, groups).items())
    settings = group.first.settings
    if not settings:
        return Html("")
    everything = ", ".join(f"{name}={value}" for name, value in settings.items())
    seeds = ", ".join(str(run.seed) for run in group.runs)
    return join(
        tag("small", differing, class_="settings") if differing else "",
        tag(
            "details",
            tag("summary", "settings"),
            tag("small", f"{everything}; seeds {seeds}"),
            class_="settings",
        ),
    )


def verdict_cell(group: Group) -> Html:
    if not group.reasons_against:
        return tag("span", "yes", class_="yes")
    reasons = "; ".join(group.reasons_against)
    return join(tag("span", "NO", class_="no"), " ", tag("small", reasons))


def _card_links(group: Group, cards: Mapping[str, str]) -> Html:
    links = [
        join(
            tag(
                "a",
                f"seed {run.seed}",
                href=f"{cards[run.run_id]}.txt",
                title=f"privacy card of {run.run_id}",
            ),
            " (",
            tag("a", "JSON", href=f"{cards[run.run_id]}.json"),
            ")",
        )
        for run in group.runs
    ]
    return tag("span", *(tag("span", link, class_="card-link") for link in links))


def ledger_table(run: RecordedRun) -> Html:
    """What each entry would cost alone, beside what all of them cost together."""
    ledger = ledger_from_json(dict(run.card.ledger))
    rows = [_entry_cells(entry, run.card.delta, ledger.adjacency) for entry in ledger.entries]
    total = epsilon_words(math.inf if run.card.epsilon is None else run.card.epsilon)
    caption = join(tag("b", run.method), f" at epsilon {total}, run {run.run_id}")
    header = ("Query", "Part of the records", "Event", "Steps", "Clipped to", "Epsilon alone")
    what = "All together" if run.card.search is None else "With the search that chose it"
    foot = join(f"{what}: epsilon ", tag("b", total), f" at delta {delta_words(run.card.delta)}")
    return table(caption, header, rows, foot)


def _entry_cells(entry: Entry, delta: float, adjacency: Adjacency) -> list[object]:
    alone = cost_of([entry.event], delta, adjacency).epsilon
    bound = DASH if entry.bound is None else f"{entry.bound:g}"
    return [
        entry.name,
        entry.part,
        describe(entry.event),
        entry.steps,
        bound,
        epsilon_words(alone),
    ]
