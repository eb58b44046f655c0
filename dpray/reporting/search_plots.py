"""Two pictures of a finished search: which settings mattered, and where the good draws lie.

`importance.png` says by fANOVA how much of the difference between scores each setting explains.
`parallel.png` has an axis a setting and a line a trial. Both show draws and their scores, which are
noisy or of public records, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpray.data.words import dataset_name
from dpray.search.journal import Finished, best_of
from dpray.search.outcome import SearchOutcome
from dpray.search.space import Choice, Dimension, LogUniform, Space, Whole, all_values, to_optuna

_INK, _MUTED, _ACCENT = "#22313f", "#9aa5ad", "#2a7f9e"
_LEAST_TRIALS = 8  # that came to their end: fewer say nothing about what mattered
_LEAST_GAP = 0.055  # between the labels of an axis whose length is 1
_LONGEST_LABEL = 16
_DPI = 110


def draw_search(outcome: SearchOutcome, folder: Path) -> list[Path]:
    """Writes the pictures that can be drawn into `folder`, and tells which.

    Guarantee: none with `charge` select, where no trial but the best may be seen or counted.
    """
    if outcome.search.charge == "select":
        return []
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if importance := importance_of(outcome.search.space, outcome.trials):
        drawn.append(folder / "importance.png")
        _draw_importance(importance, outcome, drawn[-1])
    if any(math.isfinite(trial.score) for trial in outcome.trials):
        drawn.append(folder / "parallel.png")
        _draw_parallel(outcome, drawn[-1])
    return drawn


def importance_of(space: Space, trials: Sequence[Finished]) -> dict[str, float]:
    """Each setting's share in the variance of scores, largest first; {} where none can be told."""
    moving = [name for name, one in space.items() if len(all_values(one) or (0, 1)) > 1]
    ended = _ended(trials)
    if len(ended) < _LEAST_TRIALS or len(moving) < 2:
        return {}
    import optuna  # slow to import, and few commands need it
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    known = to_optuna({name: space[name] for name in moving})
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells of every study
    try:
        study = optuna.create_study(direction="maximize")
        for trial in ended:
            params = {name: trial.draw[name] for name in moving}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=known, value=trial.score)
            )
        # The seed is that of its random forest: the same trials give the same picture.
        found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    except RuntimeError:  # scores that do not differ leave nothing to explain
        return {}
    finally:
        optuna.logging.set_verbosity(before)
    return {name: float(share) for name, share in found.items()}


def axis_place(dimension: Dimension, value: Any) -> float:
    """Where a value lies on its axis, from 0 to 1; each choice is in the middle of a stretch."""
    if isinstance(dimension, Choice):
        return (dimension.values.index(value) + 0.5) / len(dimension.values)
    low, high, value = float(dimension.low), float(dimension.high), float(value)
    if _is_log(dimension):
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def axis_ticks(dimension: Dimension) -> list[tuple[float, str]]:
    """Places and labels: every choice, or the ends of a range and round numbers between them."""
    if isinstance(dimension, Choice):
        return [(axis_place(dimension, value), _label(value)) for value in dimension.values]
    ticks = [(0.0, f"{dimension.low:g}"), (1.0, f"{dimension.high:g}")]
    for value in _round_numbers(dimension):
        place = axis_place(dimension, value)
        if all(abs(place - other) >= _LEAST_GAP for other, _ in ticks):
            ticks.append((place, f"{value:g}"))
    return sorted(ticks)


def _round_numbers(dimension: Dimension) -> list[float]:
    """Inside a range, the rounder first: on a log axis powers of ten come before 2 and 5."""
    from matplotlib.ticker import MaxNLocator

    assert not isinstance(dimension, Choice)
    low, high = float(dimension.low), float(dimension.high)
    if _is_log(dimension):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if high / low < 1000 else (1,)
        found = [digit * 10.0**power for digit in digits for power in powers]
    else:
        found = list(MaxNLocator(5, integer=isinstance(dimension, Whole)).tick_values(low, high))
    return [value for value in found if low < value < high]


def _label(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 2]}.."


def _is_log(dimension: Dimension) -> bool:
    return isinstance(dimension, LogUniform) or (isinstance(dimension, Whole) and dimension.log)


def _ended(trials: Sequence[Finished]) -> list[Finished]:
    return [trial for trial in trials if math.isfinite(trial.score) and not trial.stopped]


def _draw_importance(importance: dict[str, float], outcome: SearchOutcome, path: Path) -> None:
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 1.5 + 0.36 * len(importance)), layout="constrained")
    count = len(_ended(outcome.trials))
    _title(figure, f"{_subject(outcome)}: what mattered in {count} trials")
    names, shares = list(importance), [100 * share for share in importance.values()]
    axis.barh(names, shares, color=_ACCENT, height=0.62)
    for row, share in enumerate(shares):
        label = f"{share:.0f} %" if share >= 1 else "< 1 %"
        axis.text(share + 1, row, label, va="center", fontsize=8, color=_INK)
    axis.invert_yaxis()  # the largest on top
    axis.set_xlim(0, 108)
    axis.set_xticks(range(0, 101, 20))
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8, colors=_INK)
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.set_xlabel("share of the variance of scores, % (fANOVA)", fontsize=8, color=_INK)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)


def _draw_parallel(outcome: SearchOutcome, path: Path) -> None:
    plt = _pyplot()
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    space, trials = outcome.search.space, outcome.trials
    shades = ScalarMappable(Normalize(*_ends_of_scores(trials)), _colours())
    size = (max(6.5, 2.2 + 1.5 * len(space)), 5)
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    _title(figure, _parallel_title(outcome))
    _draw_lines(axis, space, trials, shades)
    _draw_axes(axis, space)
    _legend(axis, trials, shades)
    bar = figure.colorbar(shades, ax=axis, pad=0, fraction=0.03, aspect=40)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=_INK)
    bar.set_label("score", fontsize=9, color=_INK)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)


def _draw_lines(axis: Any, space: Space, trials: Sequence[Finished], shades: Any) -> None:
    """A line a trial, from setting to setting and to its score on the bar of scores."""
    best = best_of(trials)
    # The worst first, so that better ones lie on top of them, and the best one on all.
    for trial in sorted(trials, key=lambda trial: (trial is best, trial.score)):
        has_score = math.isfinite(trial.score)
        height = float(shades.norm(trial.score)) if has_score else 0.0
        places = [_line_place(space[name], trial.draw[name], height) for name in space]
        (line,) = axis.plot([*places, height] if has_score else places, clip_on=False, zorder=3)
        if not has_score:
            line.set(color=_MUTED, linewidth=0.8, linestyle=":")
        elif trial is best:
            line.set(color=shades.to_rgba(trial.score), linewidth=3.6, zorder=5)
        else:
            style = "--" if trial.stopped else "-"
            line.set(color=shades.to_rgba(trial.score), linewidth=1.3, linestyle=style, alpha=0.85)


def _line_place(dimension: Dimension, value: Any, height: float) -> float:
    """Lines that share a choice are drawn beside each other, the better ones higher."""
    place = axis_place(dimension, value)
    if isinstance(dimension, Choice):
        place += (height - 0.5) * _stretch(dimension)
    return place


def _stretch(choice: Choice) -> float:
    return min(0.08, 0.6 / len(choice.values))


def _draw_axes(axis: Any, space: Space) -> None:
    """A vertical line a setting with labels at its left; the bar of scores is the last one."""
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    names = []
    for number, (name, dimension) in enumerate(space.items()):
        names.append(f"{name}\n(log)" if _is_log(dimension) else name)
        axis.axvline(number, color=_INK, linewidth=1, zorder=4)
        for place, label in axis_ticks(dimension):
            if isinstance(dimension, Choice):
                ends = [place - _stretch(dimension) / 2, place + _stretch(dimension) / 2]
                axis.plot([number] * 2, ends, color=_INK, linewidth=4, alpha=0.35, zorder=4)
            else:
                axis.plot([number - 0.02, number], [place] * 2, color=_INK, linewidth=1, zorder=6)
            axis.text(
                number - 0.04,
                place,
                label,
                ha="right",
                va="center",
                fontsize=8,
                color=_INK,
                bbox=paper,
                zorder=7,
            )
    axis.set_xlim(-0.35, len(space))
    axis.set_ylim(0, 1)
    axis.margins(y=0)
    axis.set_yticks([])
    axis.set_xticks(range(len(space)), names, fontsize=9, color=_INK)
    axis.tick_params(axis="x", length=0, pad=8)
    axis.spines[:].set_visible(False)


def _legend(axis: Any, trials: Sequence[Finished], shades: Any) -> None:
    """Below the axes; a kind of line that does not occur is not explained."""
    from matplotlib.lines import Line2D

    lines = []
    if (best := best_of(trials)) is not None:
        colour = shades.to_rgba(best.score)
        lines.append(Line2D([], [], color=colour, linewidth=3.6, label="the best"))
    if any(trial.stopped for trial in trials):
        lines.append(Line2D([], [], color=_ACCENT, linestyle="--", label="stopped on its way"))
    if not all(math.isfinite(trial.score) for trial in trials):
        lines.append(Line2D([], [], color=_MUTED, linestyle=":", label="failed"))
    axis.figure.legend(
        handles=lines, loc="outside lower left", ncols=3, frameon=False, fontsize=8, labelcolor=_INK
    )


def _parallel_title(outcome: SearchOutcome) -> str:
    best, count = outcome.best_trial, len(outcome.trials)
    found = "none came to its end" if best is None else f"the best scored {best.score:.3f}"
    return f"{_subject(outcome)}: {count} trial{'s' if count != 1 else ''}, {found}"


def _subject(outcome: SearchOutcome) -> str:
    search = outcome.search
    where = dataset_name(search.dataset)
    if search.proxy is not None:
        where = f"{dataset_name(search.proxy)}, in place of {where}"
    return f"{search.method} on {where}"


def _title(figure: Any, text: str) -> None:
    figure.suptitle(text, color=_INK, fontsize=11, fontweight="bold", x=0.01, ha="left")


def _ends_of_scores(trials: Sequence[Finished]) -> tuple[float, float]:
    """The least and the best score; somewhat apart where they are one and the same."""
    scores = [trial.score for trial in trials if math.isfinite(trial.score)]
    low, high = min(scores), max(scores)
    return (low, high) if low < high else (low - 0.05, high + 0.05)


def _colours() -> Any:
    """Light is bad and dark is good; the lightest are left out, as they cannot be seen."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    shades = colormaps["YlGnBu"]([0.3 + 0.7 * step / 20 for step in range(21)])
    return LinearSegmentedColormap.from_list("scores", shades)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
