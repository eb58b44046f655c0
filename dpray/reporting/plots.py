"""Accuracy against epsilon: every method in one plot, once for wide windows and once for phones.

Filled marks are runs, hollow ones what others published; each method has a colour and a marker of
its own, on all plots of a report, and its name beside the best of its marks at an epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpray.reporting.groups import Group
from dpray.reporting.labels import Label, needed, place, shown_by_column, width_of
from dpray.reporting.markup import Html
from dpray.reporting.published import Published
from dpray.reporting.svg import BAD, INK, MUTED, PAPER, inline, look_of, settings_of
from dpray.reporting.true_costs import true_cost_of

PUBLISHED_LABEL = "published, not measured here"
WITHOUT_EPSILON_LABEL = "published without an epsilon, not measured here"
UNFIT_LABEL = "not fit for release"
CLAIMED = "claimed"  # beside a published figure whose epsilon does not hold
_POINTS = 72  # an inch
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 12.0, 6.0, 40.0  # around the axes
_PAD = 24.0  # from the left axis to the least epsilon


@dataclass(frozen=True)
class _Format:
    width: float  # of all, in points
    height: float  # of the axes, at least
    font: float  # a phone shows a point as about 1.3 CSS pixels
    small: float
    legend_columns: int
    is_narrow: bool


# The narrow one is read at 360 CSS pixels, where 3.75 inches come out a third larger.
_WIDE = _Format(10.5 * _POINTS, 340.0, 9.5, 8.0, 3, is_narrow=False)
_NARROW = _Format(3.75 * _POINTS, 300.0, 8.0, 7.0, 1, is_narrow=True)


@dataclass(frozen=True)
class _Scale:
    """Between what is plotted and points from the lower left corner of the axes."""

    epsilons: tuple[float, float]  # at the ends of the axis, which is logarithmic
    percents: tuple[float, float]
    width: float
    height: float

    def point(self, epsilon: float, percent: float) -> tuple[float, float]:
        low, high = map(math.log, self.epsilons)
        x = (math.log(epsilon) - low) / (high - low) * self.width
        return x, (percent - self.percents[0]) / (self.percents[1] - self.percents[0]) * self.height

    def value(self, x: float, y: float) -> tuple[float, float]:
        low, high = map(math.log, self.epsilons)
        bottom, top = self.percents
        return math.exp(low + x / self.width * (high - low)), bottom + y / self.height * (
            top - bottom
        )


@dataclass(frozen=True)
class _Named:
    """A mark that wants its name beside it."""

    name: str  # of marks in one column with the same name only one is labelled
    text: str
    colour: str
    epsilon: float
    percent: float


def accuracy_plot(
    groups: Sequence[Group],
    published: Mapping[Published, str],
    *,
    methods: Sequence[str],
    narrow: bool,
    described_as: str,
) -> Html:
    """The inline SVG. `published` names each figure of others.

    A method's place in `methods` decides its colour and marker.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    form = _NARROW if narrow else _WIDE
    named = [*_named_runs(groups, methods, form), *_named_figures(published, form)]
    with matplotlib.rc_context(settings_of(form.font, f"{described_as} {narrow}")):
        scale = _scale(groups, list(published), named, form)
        columns = shown_by_column(_labels(named, scale), form.small)
        tallest = max((len(shown) for _, shown in columns), default=0)
        scale = _scale(groups, list(published), named, form, needed(tallest + 1, form.small))
        figure, axis = plt.subplots()
        _frame(axis, groups, list(published), scale, form)
        _draw_runs(axis, groups, methods, form)
        _draw_published(axis, published, methods, form)
        _draw_labels(axis, _labels(named, scale), scale, form)
        _lay_out(figure, axis, scale, form)
        drawn = inline(figure, described_as)
        plt.close(figure)
    return drawn


def _named_runs(groups: Sequence[Group], methods: Sequence[str], form: _Format) -> list[_Named]:
    found = []
    for group in groups:
        if group.accuracy is None or not group.is_private:
            continue
        percent, seconds = 100 * group.accuracy.mean, group.figure("core_seconds")
        cost = f" ({seconds.mean / 60:.2g} min)" if seconds and not form.is_narrow else ""
        colour, _ = look_of(methods.index(group.method))
        text = f"{group.method} {percent:.1f}{cost}"
        found.append(_Named(group.method, text, colour, group.epsilon, percent))
    return found


def _named_figures(published: Mapping[Published, str], form: _Format) -> list[_Named]:
    if form.is_narrow:
        return []  # no room: the table names them
    found = []
    for figure, name in published.items():
        cost, percent = true_cost_of(figure), 100 * figure.accuracy
        claimed = f", {CLAIMED}" if cost is not None and not cost.holds else ""
        if figure.epsilon is not None:
            text = f"{name} {percent:.1f}{claimed}"
            found.append(_Named(name, text, MUTED, figure.epsilon, percent))
    return found


def _labels(named: Sequence[_Named], scale: _Scale) -> list[Label]:
    return [
        Label(one.name, one.text, one.colour, *scale.point(one.epsilon, one.percent))
        for one in named
    ]


def _epsilons(groups: Sequence[Group], published: Sequence[Published]) -> list[float]:
    ours = [group.epsilon for group in groups if group.accuracy and group.is_private]
    return [*ours, *(figure.epsilon for figure in published if figure.epsilon)]


def _scale(
    groups: Sequence[Group],
    published: Sequence[Published],
    named: Sequence[_Named],
    form: _Format,
    height: float = 0.0,
) -> _Scale:
    """Axes that hold every point, with room on the right for the names of the last ones."""
    known = _epsilons(groups, published) or [1.0]
    low, high = min(known), max(known)
    if high / low < 2:  # one epsilon, or nearly: it stands in the middle
        low, high = low / 2, high * 2
    width = form.width - _LEFT - _RIGHT
    room = max((width_of(one.text, form.small) for one in named), default=_PAD)
    a_point = math.log(high / low) / max(width - _PAD - room, width / 4)
    ours = [group.accuracy for group in groups if group.accuracy]
    heights = [100 * (accuracy.mean - (accuracy.spread or 0)) for accuracy in ours]
    heights += [100 * figure.accuracy for figure in published]
    least = max(0.0, min(heights, default=0) - 4)
    ends = (low * math.exp(-_PAD * a_point), low * math.exp((width - _PAD) * a_point))
    return _Scale(ends, (least, 101.0), width, max(height, form.height))


def _frame(
    axis: Any,
    groups: Sequence[Group],
    published: Sequence[Published],
    scale: _Scale,
    form: _Format,
) -> None:
    axis.set_xscale("log")
    axis.set_xlim(*scale.epsilons)
    axis.set_ylim(*scale.percents)
    ticks = _apart(sorted({float(f"{e:.2g}") for e in _epsilons(groups, published)}), scale)
    axis.set_xticks(ticks, [f"{e:,g}" for e in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("epsilon of one run (less is more private)", color=INK)
    axis.set_ylabel("test accuracy, %", color=INK)
    axis.tick_params(colors=INK, labelsize=form.font)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.6)


def _apart(ticks: Sequence[float], scale: _Scale) -> list[float]:
    """Ticks that leave each other room for their numbers: those too close above another go."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or scale.point(tick, 0)[0] - scale.point(kept[-1], 0)[0] >= 3 * _PAD / 2:
            kept.append(tick)
    return kept


def _draw_runs(axis: Any, groups: Sequence[Group], methods: Sequence[str], form: _Format) -> None:
    for number, method in enumerate(methods):
        colour, marker = look_of(number)
        known = [g for g in groups if g.method == method and g.accuracy]
        points = [(g.epsilon, g.accuracy) for g in known if g.is_private]
        ceilings = [g.accuracy.mean for g in known if not g.is_private and g.accuracy]
        if points:
            axis.errorbar(
                [epsilon for epsilon, _ in points],
                [100 * a.mean for _, a in points if a],
                yerr=[100 * (a.spread or 0) for _, a in points if a],
                fmt=marker,
                color=colour,
                markersize=form.font - 3,
                capsize=3,
                zorder=4,
            )
        if ceilings:
            best = 100 * max(ceilings)
            name = f"{method}, no privacy: {best:.1f} %"
            axis.axhline(best, color=colour, linestyle="--", linewidth=1.3, label=name, zorder=2)
    unfit = [g for g in groups if g.accuracy and g.is_private and g.reasons_against]
    if unfit:
        heights = [100 * g.accuracy.mean for g in unfit if g.accuracy]
        cross = {"linestyle": "none", "marker": "x", "color": BAD, "markersize": form.font + 1}
        axis.plot([g.epsilon for g in unfit], heights, **cross, label=UNFIT_LABEL, zorder=5)


def _draw_published(
    axis: Any, published: Mapping[Published, str], methods: Sequence[str], form: _Format
) -> None:
    """Hollow marks, in the colour of the method where there are runs of it."""
    hollow = {"linestyle": "none", "markerfacecolor": "none", "markersize": form.font - 2.5}
    for figure in published:
        if figure.epsilon is not None:
            ours = figure.known_as in methods
            colour, marker = look_of(methods.index(figure.known_as)) if ours else (MUTED, "o")
            place = ([figure.epsilon], [100 * figure.accuracy])
            axis.plot(*place, marker=marker, color=colour, **hollow, zorder=3)
    if any(figure.epsilon is not None for figure in published):
        axis.plot([], [], marker="o", color=MUTED, **hollow, label=PUBLISHED_LABEL)
    unstated = [100 * f.accuracy for f in published if f.epsilon is None]
    if unstated:
        # On the edge, not at a place along it: there is no epsilon to put them at.
        axis.plot(
            [1.0] * len(unstated),
            unstated,
            marker="<",
            color=MUTED,
            transform=axis.get_yaxis_transform(),
            clip_on=False,
            label=WITHOUT_EPSILON_LABEL,
            **hollow,
        )


def _draw_labels(axis: Any, labels: Sequence[Label], scale: _Scale, form: _Format) -> None:
    for placed in place(labels, form.small, scale.height):
        label = placed.label
        begin, end = scale.value(label.x + 4, label.y), scale.value(placed.x - 2, placed.y)
        line = {"color": label.colour, "linewidth": 0.5, "alpha": 0.7, "zorder": 1}
        axis.plot(*zip(begin, end, strict=True), **line)
        axis.text(
            *scale.value(placed.x, placed.y),
            label.text,
            fontsize=form.small,
            color=label.colour,
            va="center_baseline",
            # Other marks' lines pass behind it.
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.4},
            zorder=3,
        )


def _lay_out(figure: Any, axis: Any, scale: _Scale, form: _Format) -> None:
    """Sizes by hand: labels were placed for axes of exactly this size."""
    handles, labels = axis.get_legend_handles_labels()
    rows = -(-len(labels) // form.legend_columns)
    below = _BOTTOM + rows * 1.7 * form.font
    height = _TOP + scale.height + below
    figure.set_size_inches(form.width / _POINTS, height / _POINTS)
    axis.set_position(
        (_LEFT / form.width, below / height, scale.width / form.width, scale.height / height)
    )
    if handles:
        figure.legend(
            handles,
            labels,
            loc="lower left",
            ncols=form.legend_columns,
            frameon=False,
            fontsize=form.font,
            labelcolor=INK,
            borderaxespad=0.1,
        )
