"""`write_report(runs, folder)`: one static page about recorded runs, and their privacy cards.

    report/index.html               all of it: style, plots and pictures are inside
    report/cards/<run id>.txt, .json

Nothing is loaded from elsewhere, so the folder can be opened, sent or served as it is.
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
from dpray.reporting.groups import group_runs
from dpray.reporting.page import page
from dpray.storage import clear_errors, write_whole

_MARK = "<title>dpray report</title>"  # tells a page of ours from any other
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def write_report(runs: Sequence[RecordedRun], folder: Path) -> Path:
    """Writes the page and returns its path. Other files in the folder are left alone."""
    if not runs:
        raise BadInput("there are no runs to report on")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: name a folder for the report")
    index = folder / "index.html"
    if index.exists() and _MARK not in index.read_text(errors="replace"):
        raise BadInput(f"{index} is there and is no report of dpray: choose another --out")
    cards = {run.run_id: f"cards/{_file_name(run.run_id)}" for run in runs}
    document = page(group_runs(runs), cards=cards, made=datetime.now(UTC))
    with clear_errors(folder):
        (folder / "cards").mkdir(parents=True, exist_ok=True)
    for run in runs:
        content = json.dumps(run.card.to_json(), indent=2) + "\n"
        _write(folder / f"{cards[run.run_id]}.json", content)
        _write(folder / f"{cards[run.run_id]}.txt", run.card.text())
    _write(index, document)  # last: a page is there once all it links to is
    return index


def _write(path: Path, content: str) -> None:
    write_whole(path, content.encode())
    with clear_errors(path):
        path.chmod(0o644)  # all of it is public, and a web server may have to read it


def _file_name(run_id: str) -> str:
    """The run id where it is a plain file name; a digest where it could lead elsewhere."""
    if _SAFE.fullmatch(run_id):
        return run_id
    return f"run-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
