"""Where a search lives on disk: one folder with a public side and a private side.

    searches/<id>/search.json, cost.json, best.json, study.log, importance.png, parallel.png
    searches/<id>/private/    owner-only: the key, the journal, the runs of trials

`study.log` is Optuna's own and is there where trials may be seen. What leaves a search is a run
like any other, in `runs/<id>`.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpray.data.folders import home
from dpray.data.words import dataset_name
from dpray.errors import CannotResume
from dpray.privacy.noise import RunKey
from dpray.runs import RunFolder
from dpray.search.trials import SearchSpec
from dpray.storage import private_folder, write_whole


@dataclass(frozen=True)
class SearchFolder:
    path: Path

    @property
    def search_id(self) -> str:
        return self.path.name

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def runs(self) -> Path:
        """Of trials: what they release is not public unless the search says so."""
        return self.private / "runs"

    @property
    def study(self) -> Path:
        return self.path / "study.log"

    @property
    def best(self) -> Path:
        return self.path / "best.json"

    def trial(self, run_id: str) -> RunFolder:
        return RunFolder(self.runs / run_id)

    def read_search(self) -> SearchSpec:
        return SearchSpec.read(self.path / "search.json")

    def write_json(self, name: str, value: Any) -> None:
        write_whole(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def key(self, test_key: int | None = None) -> RunKey:
        """The secret key of the search: the one that is there, or a new one."""
        file = self.private / "key"
        if file.exists():
            return RunKey.read(file)
        key = RunKey.fresh() if test_key is None else RunKey.insecure(test_key)
        key.write(file)
        return key

    def close(self, *, keep_trials: bool) -> None:
        """After the best trial has left: the key and, unless they may be seen, all trials go."""
        RunKey.destroy(self.private / "key")
        if not keep_trials:
            shutil.rmtree(self.runs, ignore_errors=True)


def searches_folder() -> Path:
    return home() / "searches"


def new_search_id(search: SearchSpec) -> str:
    """With the time at which it began, but where how long it took would tell the trials made."""
    words = f"tune-{search.method}-{dataset_name(search.dataset)}"
    if search.charge == "select":
        return f"{words}-{secrets.token_hex(5)}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{words}-{secrets.token_hex(2)}"


def make_search_folder(search_id: str, search: SearchSpec) -> SearchFolder:
    folder = SearchFolder(searches_folder() / search_id)
    private_folder(folder.runs.parent)
    private_folder(folder.runs)
    folder.write_json("search.json", search.to_json())
    return folder


def open_search_folder(search_id: str) -> SearchFolder:
    folder = SearchFolder(searches_folder() / search_id)
    if not (folder.path / "search.json").exists():
        recent = sorted(path.parent.name for path in searches_folder().glob("*/search.json"))[-3:]
        known = ", ".join(recent) or "none"
        raise CannotResume(f"no search {search_id!r}; the latest are: {known}")
    return folder
