"""Accuracy against epsilon as SVG, once for wide windows and once for telephones.

Colours are written as CSS variables, so that the page can choose them for light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpray.reporting.groups import Group
from dpray.reporting.markup import Html
from dpray.reporting.published import Published

# Stand-ins matplotlib can draw with; each is replaced by the CSS variable of its name.
_INK, _MUTED = "#010203", "#040506"
_COLOURS = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006", "#0a0007", "#0a0008")
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    **{colour: f"var(--method-{i})" for i, colour in enumerate(_COLOURS)},
}
_MARKERS = "osD^vP*X"
PUBLISHED_LABEL = "published, not measured here"
WITHOUT_EPSILON_LABEL = "published without an epsilon, not measured here"


@dataclass(frozen=True)
class _Format:
    inches: tuple[float, float]
    font: float  # points; a phone shows a point as about 1.3 CSS pixels
    small: float
    room: float  # for names on the right: by how much the epsilon axis goes on


# The narrow one is read at 360 CSS pixels, where 3.75 inches come out a third larger.
_WIDE = _Format((9.0, 5.6), 9.5, 7.5, 2.2)
_NARROW = _Format((3.75, 5.6), 8.0, 7.0, 5.0)


def accuracy_plot(
    groups: Sequence[Group],
    published: Mapping[Published, str],
    *,
    methods: Sequence[str],
    narrow: bool,
    described_as: str,
) -> Html:
    """The inline SVG: points with error bars are runs, grey bars are published figures.

    `published` names each figure; a method's place in `methods` decides its colour and marker.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    form = _NARROW if narrow else _WIDE
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # real text: it can be searched, and it takes the page's font
        "svg.hashsalt": f"{described_as} {narrow}",  # ids differ from those of the other plots
        "text.parse_math": False,
        "font.size": form.font,
    }
    with matplotlib.rc_context(settings):
        figure, axis = plt.subplots(figsize=form.inches, layout="constrained")
        _frame(axis, groups, list(published), form)
        _draw_runs(axis, groups, methods, form)
        _draw_published(axis, published, form)
        _legend(figure, axis, form, columns=1 if narrow else 3)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True)
        plt.close(figure)
    return _inline(drawn.getvalue(), described_as)


def _frame(
    axis: Any, groups: Sequence[Group], published: Sequence[Published], form: _Format
) -> None:
    """Axes that hold every point, with room on the right for the names of published ones."""
    ours = [(g.epsilon, g.accuracy) for g in groups if g.accuracy]
    epsilons = [e for e, _ in ours if e < float("inf")]
    epsilons += [figure.epsilon for figure in published if figure.epsilon]
    heights = [100 * (a.mean - (a.spread or 0)) for _, a in ours]
    heights += [100 * figure.accuracy for figure in published]
    low, high = min(epsilons, default=1.0) / 1.5, max(epsilons, default=1.0) * 1.6
    axis.set_xscale("log")
    axis.set_xlim(low, high * (form.room if published else 1))
    axis.set_ylim(max(0.0, min(heights, default=0) - 4), 101)
    ticks = sorted({float(f"{e:.2g}") for e in epsilons})
    axis.set_xticks(_apart(ticks), [f"{e:g}" for e in _apart(ticks)])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("epsilon of one run (less is more private)", color=_INK)
    axis.set_ylabel("test accuracy, %", color=_INK)
    axis.tick_params(colors=_INK, labelsize=form.font)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(_INK)
    axis.grid(axis="y", color=_MUTED, alpha=0.25, linewidth=0.6)


def _apart(ticks: Sequence[float]) -> list[float]:
    """Ticks that leave each other room: those closer than a quarter above another go."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or tick / kept[-1] >= 1.35:
            kept.append(tick)
    return kept


def _draw_runs(axis: Any, groups: Sequence[Group], methods: Sequence[str], form: _Format) -> None:
    for number, method in enumerate(methods):
        colour = _COLOURS[number % len(_COLOURS)]
        marker = _MARKERS[number % len(_MARKERS)]
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
                label=method,
                zorder=4,
            )
        if ceilings:
            best = 100 * max(ceilings)
            name = f"{method}, no privacy: {best:.1f} %"
            axis.axhline(best, color=colour, linestyle="--", linewidth=1.3, label=name, zorder=2)


def _draw_published(axis: Any, published: Mapping[Published, str], form: _Format) -> None:
    """A short bar a figure, and its name beside it, moved apart where names would touch."""
    low, high = axis.get_ylim()
    height = (form.inches[1] - 1.3) * 72  # of the axes, in points, less labels and legend
    gap = (high - low) * form.small * 1.3 / height
    label: str | None = PUBLISHED_LABEL
    for epsilon in sorted({f.epsilon for f in published if f.epsilon}):
        figures = sorted((f for f in published if f.epsilon == epsilon), key=lambda f: f.accuracy)
        heights = [100 * f.accuracy for f in figures]
        for figure, true, shown in zip(figures, heights, spread(heights, gap, high), strict=True):
            # A bar, not a point: it cannot be taken for one of the runs.
            axis.plot(
                [epsilon / 1.1, epsilon * 1.1],
                [true, true],
                color=_MUTED,
                linewidth=2,
                label=label,
                zorder=1,
            )
            label = None  # one line in the legend stands for all
            axis.plot(
                [epsilon * 1.1, epsilon * 1.26],
                [true, shown],
                color=_MUTED,
                linewidth=0.5,
                zorder=1,
            )
            axis.text(
                epsilon * 1.29,
                shown,
                published[figure],
                fontsize=form.small,
                color=_MUTED,
                va="center_baseline",
                zorder=1,
            )
    unstated = [100 * f.accuracy for f in published if f.epsilon is None]
    if unstated:
        # On the edge, not at a place along it: there is no epsilon to put them at.
        axis.plot(
            [1.0] * len(unstated),
            unstated,
            linestyle="none",
            marker="<",
            markersize=form.font - 2,
            color=_MUTED,
            transform=axis.get_yaxis_transform(),
            clip_on=False,
            label=WITHOUT_EPSILON_LABEL,
            zorder=1,
        )


def spread(heights: Sequence[float], gap: float, highest: float) -> list[float]:
    """Ascending heights moved as little as need be to lie `gap` apart, none above `highest`."""
    blocks: list[list[float]] = []  # each: sum of the wished first positions, how many
    for height in heights:
        blocks.append([height, 1])
        while len(blocks) > 1 and _start(blocks[-2]) + gap * blocks[-2][1] > _start(blocks[-1]):
            wished, count = blocks.pop()
            before = blocks[-1]
            before[0] += wished - gap * before[1] * count
            before[1] += count
    placed = [_start(b) + gap * i for b in blocks for i in range(int(b[1]))]
    for i in range(len(placed) - 1, -1, -1):
        limit = highest if i == len(placed) - 1 else placed[i + 1] - gap
        placed[i] = min(placed[i], limit)
    return placed


def _start(block: Sequence[float]) -> float:
    return block[0] / block[1]


def _legend(figure: Any, axis: Any, form: _Format, columns: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=min(columns, len(labels)),
            frameon=False,
            fontsize=form.font,
            labelcolor=_INK,
        )


def _inline(svg: str, described_as: str) -> Html:
    """The svg element alone, sized by the page, with a name for those who do not see it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    name = described_as.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return Html(f'{opening} role="img" aria-label="{name}">{rest}')
