"""`write_report(runs, folder)`: static pages about recorded runs, and their privacy cards.

    report/index.html               runs, plots, samples, ledgers
    report/comparison.html          all methods: epsilon, accuracy, cost, and published figures
    report/cards/<run id>.txt, .json

Style, plots and pictures are inside the pages, and nothing is loaded from elsewhere: the folder can
be opened, sent or served as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpray.errors import BadInput
from dpray.evaluation.recorded import RecordedRun
from dpray.reporting import comparison
from dpray.reporting import page as main_page
from dpray.reporting.groups import group_runs
from dpray.storage import clear_errors, write_whole

_TITLES = {"index.html": main_page.TITLE, main_page.COMPARISON: comparison.TITLE}
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def write_report(runs: Sequence[RecordedRun], folder: Path) -> Path:
    """Writes the pages and returns the path of the main one. Other files are left alone."""
    if not runs:
        raise BadInput("there are no runs to report on")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: name a folder for the report")
    for name, title in _TITLES.items():
        there = folder / name
        # Its title tells a page of ours from any other.
        if there.exists() and f"<title>{title}</title>" not in there.read_text(errors="replace"):
            raise BadInput(f"{there} is there and is no report of dpray: choose another --out")
    cards = {run.run_id: f"cards/{_file_name(run.run_id)}" for run in runs}
    by_dataset, made = group_runs(runs), datetime.now(UTC)
    methods = sorted({run.method for run in runs})
    figures = {
        dataset: comparison.accuracy_figure(dataset, groups, methods)
        for dataset, groups in by_dataset.items()
    }
    index = main_page.page(by_dataset, figures=figures, cards=cards, made=made)
    compared = comparison.comparison_page(by_dataset, figures=figures, made=made)
    with clear_errors(folder):
        (folder / "cards").mkdir(parents=True, exist_ok=True)
    for run in runs:
        content = json.dumps(run.card.to_json(), indent=2) + "\n"
        _write(folder / f"{cards[run.run_id]}.json", content)
        _write(folder / f"{cards[run.run_id]}.txt", run.card.text())
    _write(folder / main_page.COMPARISON, compared)
    _write(folder / "index.html", index)  # last: a page is there once all it links to is
    return folder / "index.html"


def _write(path: Path, content: str) -> None:
    write_whole(path, content.encode())
    with clear_errors(path):
        path.chmod(0o644)  # all of it is public, and a web server may have to read it


def _file_name(run_id: str) -> str:
    """The run id where it is a plain file name; a digest where it could lead elsewhere."""
    if _SAFE.fullmatch(run_id):
        return run_id
    return f"run-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
