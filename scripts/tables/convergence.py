"""How a small set grew: accuracy against epsilon spent, from the snapshots a release keeps.

The snapshots are as public as the release, so to measure each costs no budget. Each stands at
the epsilon of the queries asked until then, which is less than what the run spent in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpray.contract import load_release
from dpray.errors import DprayError
from dpray.runs import open_folder
from tables.jobs import note
from tables.kept import Place
from tables.pictures import INK, look, new_axis, save
from tables.rows import PUBLISHED_EPOCHS, Row, Table
from tables.trained import Training, kept_trainings, snapshots_of

CLASSIFIER = "convnet"


def trainings(
    rows: Sequence[Row],
    folder: Path,
    *,
    classifier: str = CLASSIFIER,
    epochs: int = PUBLISHED_EPOCHS,
) -> list[Training]:
    """One network for every snapshot of the finished rows' first seeds, kept or not."""
    found = []
    for row in rows:
        place = Place(row, row.seeds[0], folder)
        run = place.read()
        if run is None:
            continue
        try:
            release = load_release(open_folder(run["run_id"]).release)
        except (DprayError, OSError) as error:  # one release that is gone leaves the others
            note(f"{row.label}: left out: {error}")
            continue
        found += [
            Training(place, classifier, 0, epochs, snapshot)
            for snapshot in range(len(snapshots_of(release)))
        ]
    return found


def curve(row: Row, folder: Path) -> list[dict[str, Any]]:
    """The snapshots that were measured, of those trained for longest, in the order of queries."""
    values = list(kept_trainings(Place(row, row.seeds[0], folder)))
    kept = [value for value in values if value["snapshot"] is not None]
    longest = max((value["epochs"] for value in kept), default=0)
    return sorted((v for v in kept if v["epochs"] == longest), key=lambda v: v["queries"])


def draw(table: Table, dataset: str, rows: Sequence[Row], folder: Path, path: Path) -> bool:
    """One line a row; False, and no picture, where no snapshot was measured."""
    curves = {row.label: points for row in rows if (points := curve(row, folder))}
    if not curves:
        return False
    figure, axis = new_axis(f"{table.title}: {dataset}")
    for number, (label, points) in enumerate(curves.items()):
        known = [point for point in points if point["epsilon"] is not None]
        axis.plot(
            [point["epsilon"] for point in known],
            [100 * point["accuracy"] for point in known],
            **{**look(number), "linestyle": "--" if "prior" in label else "-"},
            linewidth=1,
            label=f"{label} ({points[0]['epochs']:,} epochs)",
        )
    axis.set_xlabel("epsilon spent until then (delta 1e-5)", color=INK)
    axis.set_ylabel("accuracy of one ConvNet on the public test set, %", color=INK)
    save(figure, axis, path)
    return True
