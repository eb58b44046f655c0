"""The figures of a table: accuracy against epsilon, and what the synthesizers draw.

The source draws accuracy against epochs; to read the test set every epoch is what is avoided here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from dpray.reporting.grid import grid
from dpray.reporting.labels import spread
from tables.rows import PublishedFigure, Table
from tables.summary import Measured, shown_epsilon

INK, MUTED = "#22313f", "#7b8794"
COLOURS = ("#2a7f9e", "#c0392b", "#6b8e23", "#8e5ea2", "#d68910", "#34495e", "#16a085", "#b03a6f")
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":")
_LABEL_GAP = 2.6  # percentage points of the accuracy axis for each label, over a span of 100
_GRIDS_ABREAST = 3
_GRID_WIDTH, _CAPTION_HEIGHT = 3.4, 0.5  # inches
_TILE = 0.62  # inches of one image in a row of several
_PAD = 2  # screen pixels between images


def look(number: int) -> dict[str, str]:
    """Of a series by its place: where the colours begin anew, marker and line are others."""
    rounds, place = divmod(number, len(COLOURS))
    return {
        "color": COLOURS[place],
        "marker": MARKERS[(place + rounds) % len(MARKERS)],
        "linestyle": LINES[rounds % len(LINES)],
    }


def draw_curves(table: Table, dataset: str, rows: Sequence[Measured], path: Path) -> bool:
    """Accuracy against epsilon of what has run; False, and no picture, where nothing has."""
    done = [measured for measured in rows if measured.metric("test_accuracy") is not None]
    if not done:
        return False
    plt = _pyplot()
    published = _published(rows)
    figure, (axis, side) = plt.subplots(
        1,
        2,
        figsize=(11, 6.2),
        sharey=True,
        width_ratios=(3.4, 1 if published else 0.01),
        layout="constrained",
    )
    _draw_runs(axis, done)
    spreads = [spread for m in done if (spread := m.metric("test_accuracy"))]
    feet = [100 * (spread.mean - (spread.deviation or 0)) for spread in spreads]  # of the bars
    on_axis = [marked.accuracy for measured in done if (marked := _to_mark(measured))]
    shown = [accuracy for accuracy in (*published.values(), *on_axis) if accuracy is not None]
    lowest = min([*feet, *(100 * accuracy for accuracy in shown)])
    axis.set_ylim(max(0.0, lowest - 4), 101)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("epsilon of one run (less is more private)", color=INK)
    axis.set_ylabel("accuracy on the public test set, %", color=INK)
    _plain(axis)
    _draw_published(side, published, axis.get_ylim())
    figure.suptitle(f"{table.title}: {dataset}", fontsize=10, color=INK)
    save(figure, axis, path)
    return True


def _draw_runs(axis: Any, done: Sequence[Measured]) -> None:
    """A line a series with deviations over seeds; without privacy, a line across."""
    epsilons: list[float] = []
    for number, series in enumerate(dict.fromkeys(measured.row.series for measured in done)):
        style = look(number)
        points, ceilings = [], []
        for measured in done:
            accuracy = measured.metric("test_accuracy")
            if measured.row.series != series or accuracy is None:
                continue
            if measured.epsilon is None:
                ceilings.append(accuracy)
            else:
                points.append((measured.epsilon, accuracy))
        if points:
            epsilons += [epsilon for epsilon, _ in points]
            axis.errorbar(
                [epsilon for epsilon, _ in points],
                [100 * accuracy.mean for _, accuracy in points],
                yerr=[100 * (accuracy.deviation or 0) for _, accuracy in points],
                linewidth=1,
                capsize=3,
                label=series,
                **style,
            )
        marked = [f for m in done if m.row.series == series and (f := _to_mark(m)) is not None]
        if marked:
            epsilons += [figure.epsilon for figure in marked if figure.epsilon is not None]
            axis.plot(
                [figure.epsilon for figure in marked],
                [100 * (figure.accuracy or 0) for figure in marked],
                markerfacecolor="none",
                label=f"{series}, published",
                **{**style, "linestyle": "none"},
            )
        for accuracy in ceilings:
            axis.axhline(100 * accuracy.mean, color=style["color"], linestyle="--", label=series)
    if epsilons:
        axis.set_xlim(min(epsilons) / 1.5, max(epsilons) * 1.5)


def _to_mark(measured: Measured) -> PublishedFigure | None:
    """A published figure that has a place on the axis of epsilon."""
    figure = measured.row.published
    if figure is None or figure.accuracy is None:
        return None
    return figure if figure.holds else None


def _published(rows: Sequence[Measured]) -> dict[str, float]:
    """One figure may stand beside several rows: it is named by what it is, and drawn once."""
    figures: dict[str, float] = {}
    for measured in rows:
        figure = measured.row.published
        if figure is not None and figure.accuracy is not None and not figure.holds:
            kind = measured.row.series.split(",")[0]
            noise = figure.noise_multiplier
            name = f"{kind}, noise {noise:g}" if noise is not None else kind
            if figure.epsilon is not None:
                name = f"{kind}, epsilon {figure.epsilon:g} claimed"
            figures[f"{name}: {100 * figure.accuracy:.1f}"] = figure.accuracy
    return figures


def _draw_published(side: Any, published: dict[str, float], limits: tuple[float, float]) -> None:
    """Short bars beside the axis and not on it: there is no epsilon to put them at."""
    side.set_xlim(0, 1)
    side.set_xticks([])
    side.spines[:].set_visible(False)
    side.tick_params(left=False, labelleft=False)
    if not published:
        side.set_visible(False)
        return
    stated = any("claimed" in name for name in published)
    title = "published" if stated else "published, no epsilon stated"
    side.set_title(title, fontsize=9, color=MUTED)
    names = sorted(published, key=lambda name: published[name])
    heights = [100 * published[name] for name in names]
    gap = _LABEL_GAP * (limits[1] - limits[0]) / 100
    for name, true, shown in zip(names, heights, spread(heights, gap, limits[1]), strict=True):
        side.plot([0.0, 0.14], [true, true], color=MUTED, linewidth=2.5)
        side.plot([0.14, 0.24], [true, shown], color=MUTED, linewidth=0.6)
        side.text(0.26, shown, name, fontsize=8, color=MUTED, va="center_baseline")


def draw_grids(table: Table, dataset: str, rows: Sequence[Measured], path: Path) -> bool:
    """Images of every class from every synthesizer; False, and no picture, without any."""
    done = [measured for measured in rows if measured.images is not None]
    if not done:
        return False
    plt = _pyplot()
    across = min(_GRIDS_ABREAST, len(done))
    down = math.ceil(len(done) / across)
    height = _CAPTION_HEIGHT + _GRID_WIDTH * max(map(_tallness, done))
    figure, axes = plt.subplots(
        down,
        across,
        figsize=(_GRID_WIDTH * across, height * down),
        squeeze=False,
        layout="constrained",
    )
    figure.get_layout_engine().set(h_pad=0.1)
    for axis in axes.flat:
        axis.axis("off")
    for axis, measured in zip(axes.flat, done, strict=False):
        assert measured.images is not None
        with Image.open(measured.images) as image:
            axis.imshow(image.convert("RGB"))
        axis.set_title(_caption(measured), fontsize=8, color=INK)
    figure.suptitle(
        f"Synthetic {dataset}: at most 5 images a class, first seed", fontsize=10, color=INK
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _tallness(measured: Measured) -> float:
    assert measured.images is not None
    with Image.open(measured.images) as image:
        return image.height / image.width


def _caption(measured: Measured) -> str:
    # Of the first run that released images, which is the one they are of.
    known = [run["metrics"] for run in measured.runs.values() if "diverged" not in run]
    accuracy = 100 * known[0]["test_accuracy"]
    return f"{measured.row.label}\nepsilon {shown_epsilon(measured)}, accuracy {accuracy:.1f} %"


def new_axis(title: str) -> tuple[Any, Any]:
    """A figure of one plain axis; `save` ends it."""
    figure, (axis,) = new_axes(title, 1, (8, 5.4))
    return figure, axis


def new_axes(title: str, count: int, inches: tuple[float, float]) -> tuple[Any, Sequence[Any]]:
    """A figure of plain axes side by side; `save` ends it."""
    figure, axes = _pyplot().subplots(1, count, figsize=inches, squeeze=False, layout="constrained")
    for axis in axes.flat:
        _plain(axis)
    figure.suptitle(title, fontsize=10, color=INK)
    return figure, axes.flat


def draw_rows(
    title: str, blocks: Sequence[tuple[str, Sequence[tuple[str, Tensor]]]], path: Path
) -> None:
    """Blocks of images below each other: rows of as many images each, and what each row is."""
    plt = _pyplot()
    across = max(len(images) for _, rows in blocks for _, images in rows)
    pictures = [
        grid(torch.stack([image for _, images in rows for image in images]), across, pad=_PAD)
        for _, rows in blocks
    ]
    # All in inches and placed by hand: a layout engine knows nothing of images that keep shape.
    wide, labels, edge, name_height = _TILE * across, 1.9, 0.15, 0.32
    heights = [wide * picture.height / picture.width for picture in pictures]
    total = (labels + wide + edge, 0.4 + edge + sum(heights) + name_height * len(blocks))
    figure, top = plt.figure(figsize=total), total[1] - 0.4
    for (name, rows), picture, height in zip(blocks, pictures, heights, strict=True):
        top -= name_height + height
        place = (labels / total[0], top / total[1], wide / total[0], height / total[1])
        axis = figure.add_axes(place)
        axis.imshow(picture.convert("RGB"), aspect="auto")
        pitch = (picture.height - _PAD) / len(rows)
        middles = [_PAD / 2 + (row + 0.5) * pitch for row in range(len(rows))]
        axis.set_yticks(middles, [label for label, _ in rows], fontsize=8, color=INK)
        axis.set_xticks([])
        axis.tick_params(left=False)
        axis.spines[:].set_visible(False)
        axis.set_title(name, fontsize=9, color=INK, loc="left")
    figure.suptitle(title, fontsize=10, color=INK, y=1 - 0.2 / total[1], va="center")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def save(figure: Any, axis: Any, path: Path) -> None:
    figure.legend(
        *axis.get_legend_handles_labels(),
        loc="outside lower left",
        ncols=2,
        fontsize=8,
        handlelength=4,  # long enough to tell a dashed line
    )
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)


def _plain(axis: Any) -> None:
    axis.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
