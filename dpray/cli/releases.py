"""What people name a release by: a folder, a run id, or a reference of the model registry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from dpray.contract import Release, load_release
from dpray.errors import BadInput
from dpray.execute import read_result
from dpray.privacy.card import Card
from dpray.runs import open_folder, runs_folder

if TYPE_CHECKING:
    from dpray.tracking.registry import ModelRow

MODEL_HELP = "NAME, NAME/VERSION, NAME@alias, a run id or a release folder"


@dataclass(frozen=True)
class Opened:
    release: Release
    card: Card | None  # None for a bare folder, which has none
    row: ModelRow | None  # None unless the registry was asked


def open_release(word: str) -> Opened:
    """A release folder, else a run, else a model of the registry; the last two have a card."""
    path = os.path.expanduser(word)
    if os.path.isfile(os.path.join(path, "release.json")):
        return Opened(_load_folder(Path(path)), None, None)
    if word[:1] in {"/", ".", "~"}:
        raise BadInput(f"{word} is not a release folder: it has no release.json")
    if os.path.isfile(runs_folder() / word / "spec.json"):
        result = read_result(open_folder(word))
        return Opened(result.release, result.card, None)
    # Imported here: a folder or a run on disk needs no MLflow.
    from dpray.tracking.registry import card_of, find, load

    row = find(word)
    return Opened(load(row.reference), card_of(row), row)


def _load_folder(folder: Path) -> Release:
    try:
        return load_release(folder)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{folder} is not a whole release: {reason}") from None
