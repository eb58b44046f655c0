"""The pictures of the table of dpmi: what was varied, what is drawn, and how it came about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpray.contract import Synthesizer, load_release
from dpray.errors import DprayError
from dpray.methods.dpmi import Dpmi
from dpray.models.latent_models import LatentSynthesizer
from dpray.privacy.card import Card
from dpray.privacy.ledger import ledger_from_json
from dpray.runs import open_folder
from tables.dpmi_costs import epsilon_after
from tables.inversions import WAYS, ways_of
from tables.jobs import note
from tables.pictures import (
    COLOURS,
    INK,
    MARKERS,
    MUTED,
    draw_curves,
    draw_grids,
    draw_rows,
    new_axes,
    save,
)
from tables.rows import BUDGET, Figure, Table
from tables.summary import Measured

_SHOWN = 10  # images in a row
_AXES = {
    "test_accuracy": ("accuracy of a CNN on the public test set, %", 100.0),
    "domain_is": ("domain IS (1: all alike, 5: as varied as real images)", 1.0),
}
Lines = Mapping[str, Sequence[tuple[float, Measured]]]


def curves(table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path) -> bool:
    """The combinations at budgets and AuGM; what was varied has pictures of its own."""
    shown = [measured for measured in rows if measured.row.group in (BUDGET, "augm")]
    return draw_curves(table, dataset, shown, path)


def grids(table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path) -> bool:
    shown = [m for m in rows if m.row.group == BUDGET and m.row.epsilon == 10]
    return draw_grids(table, dataset, shown, path)


def activation(
    table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path
) -> bool:
    lines = _lines(rows, "activation", lambda row: _setting(row, "activation"), _epsilon)
    if len(lines) < 2:
        return False
    title = f"Activation of the private learner, ae-grad-vae: {dataset}"
    _draw_lines(title, lines, "epsilon of one run (less is more private)", path)
    return True


def clip(table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path) -> bool:
    lines = _lines(
        rows,
        "clip",
        lambda measured: f"epsilon {measured.row.epsilon:g}",
        lambda measured: float(_setting(measured, "clip_norm")),
    )
    if not any(len(points) > 1 for points in lines.values()):
        return False
    title = f"Clip norm of gradients, ae-grad-vae: {dataset}"
    _draw_lines(title, lines, "clip norm of a record's gradient", path)
    return True


def _epsilon(measured: Measured) -> float:
    return measured.row.epsilon or 0.0


def _setting(measured: Measured, name: str) -> Any:
    return measured.row.settings.get(name, getattr(Dpmi, name))


def _lines(
    rows: Sequence[Measured],
    group: str,
    line_of: Callable[[Measured], str],
    place_of: Callable[[Measured], float],
) -> Lines:
    """The finished rows of a group, those that other groups run for it included."""
    lines: dict[str, list[tuple[float, Measured]]] = {}
    for measured in rows:
        if group in (measured.row.group, *measured.row.also) and measured.runs:
            lines.setdefault(line_of(measured), []).append((place_of(measured), measured))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items()}


def _draw_lines(title: str, lines: Lines, across: str, path: Path) -> None:
    """Accuracy at the left, variety at the right, over the same axis of what was varied."""
    figure, axes = new_axes(title, len(_AXES), (11, 5.0))
    places = sorted({place for points in lines.values() for place, _ in points})
    for axis, (metric, (name, scale)) in zip(axes, _AXES.items(), strict=True):
        for number, (label, points) in enumerate(lines.items()):
            known = [(x, spread) for x, m in points if (spread := m.metric(metric)) is not None]
            axis.errorbar(
                [x for x, _ in known],
                [scale * spread.mean for _, spread in known],
                yerr=[scale * (spread.deviation or 0) for _, spread in known],
                marker=MARKERS[number],
                color=COLOURS[number],
                linewidth=1,
                capsize=3,
                label=label,
            )
        axis.set_xscale("log")
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        axis.set_xlabel(across, color=INK)
        axis.set_ylabel(name, color=INK)
    axes[1].axhline(1, color=MUTED, linestyle="--", linewidth=0.8)
    axes[1].set_ylim(0.9, 5.1)
    save(figure, axes[0], path)


def training(table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path) -> bool:
    """What the learner would have released after so many steps, and what it had spent by then."""
    for measured in rows:
        if measured.row.group != "training":
            continue
        for seed, run in measured.runs.items():
            blocks = _snapshots(run["run_id"], seed) if "diverged" not in run else []
            if blocks:
                title = (
                    f"Synthetic {dataset} on the way, {measured.row.label}: epsilon spent so far"
                )
                draw_rows(title, [("the same draws in every row", blocks)], path)
                return True
    return False


def _snapshots(run_id: str, seed: int) -> list[tuple[str, Tensor]]:
    try:
        folder = open_folder(run_id)
        release, card = load_release(folder.release), Card.read(folder.path / "card.json")
    except (DprayError, OSError) as error:
        note(f"snapshots left out: {error}")
        return []
    module = release.module
    assert isinstance(release, Synthesizer) and isinstance(module, LatentSynthesizer)
    ledger = ledger_from_json(dict(card.ledger))
    classes = len(release.class_names)
    labels = torch.arange(_SHOWN // classes * classes or classes) % classes
    shown = []
    for place, steps in enumerate(module.histories[0].get_buffer("steps").tolist()):
        rng = torch.Generator().manual_seed(seed)  # the same draws for all
        with torch.no_grad():
            images = module.after(place, labels, rng).cpu()
        shown.append((f"step {steps:,}, epsilon {_shown(epsilon_after(steps, ledger))}", images))
    return shown


def _shown(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.3g}"


def reconstructions(
    table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path
) -> bool:
    """Public images that no model was trained on, and what each way makes of them."""
    blocks: list[tuple[str, list[tuple[str, Tensor]]]] = []
    for way in ways_of([measured.row for measured in rows], kept):
        found = way.read()
        if found is None:
            continue
        lines = [("public test image", found["images"][:_SHOWN])]
        numbers = zip(found["steps"].tolist(), found["errors"].tolist(), strict=True)
        for (steps, error), pixels in zip(numbers, found["pixels"], strict=True):
            when = "one pass" if way.way == "ae-enc" else f"{steps} steps"
            lines.append((f"{when}, error {error:.4f}", pixels[:_SHOWN]))
        blocks.append((WAYS[way.way], lines))
    if not blocks:
        return False
    title = f"Reconstructions of public {dataset} images; error: mean square per pixel, in [0, 1]"
    draw_rows(title, blocks, path)
    return True


FIGURES = {
    "curves": Figure("Accuracy against epsilon", curves),
    "grids": Figure("Synthetic images of the six combinations at epsilon 10", grids),
    "activation": Figure("Accuracy and variety by activation", activation),
    "clip": Figure("Accuracy and variety by clip norm", clip),
    "training": Figure("Images on the way", training),
    "reconstructions": Figure("Reconstructions of public images", reconstructions),
}
