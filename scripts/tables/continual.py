"""Tasks one after another: accuracy over all classes seen so far, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tables.pictures import INK, look, new_axis, save
from tables.rows import Table
from tables.summary import Measured, Spread, lined


def after_tasks(measured: Measured) -> list[Spread]:
    """Accuracy after the first task, the second and so on; none where a row has no tasks."""
    found: list[Spread] = []
    name = "accuracy_after_1"
    while (spread := measured.metric(name, within=f"{name}_std")) is not None:
        found.append(spread)
        name = f"accuracy_after_{len(found) + 1}"
    return found


def markdown(rows: Sequence[Measured]) -> str:
    done = {measured.row.series: after for measured in rows if (after := after_tasks(measured))}
    if not done:
        return ""
    longest = max(map(len, done.values()))
    lines = [
        [series, *(spread.text(100) for spread in after), *["-"] * (longest - len(after))]
        for series, after in done.items()
    ]
    header = ["learner", *(f"after task {number}" for number in range(1, longest + 1))]
    text = ["", "## One task after another", "", *lined(header, lines), ""]
    text += ["Test accuracy in percent over the classes of all tasks so far."]
    return "\n".join(text) + "\n"


def draw(table: Table, dataset: str, rows: Sequence[Measured], path: Path) -> bool:
    """One line a learner; False, and no picture, where no such row has run."""
    done = {measured.row.series: after for measured in rows if (after := after_tasks(measured))}
    if not done:
        return False
    figure, axis = new_axis(f"{table.title}, one task after another: {dataset}")
    for number, (series, after) in enumerate(done.items()):
        axis.errorbar(
            range(1, len(after) + 1),
            [100 * spread.mean for spread in after],
            yerr=[100 * (spread.deviation or 0) for spread in after],
            **look(number),
            linewidth=1,
            capsize=3,
            label=series,
        )
    axis.set_xticks(range(1, 1 + max(map(len, done.values()))))
    axis.set_xlabel("tasks so far", color=INK)
    axis.set_ylabel("accuracy on the classes so far, %", color=INK)
    save(figure, axis, path)
    return True
