"""scripts/reproduce_tables.py --jobs: runs of rows as jobs of a real Ray pool."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dpray.runs import runs_folder

SCRIPTS = str(Path(__file__).parents[2] / "scripts")
sys.path.insert(0, SCRIPTS)

from reproduce_tables import main  # noqa: E402
from tables import TABLES  # noqa: E402
from tables.rows import Row, Table  # noqa: E402

ROW = Row(
    label="tiny",
    series="tiny",
    method="sgd",
    dataset="digits",
    settings={"model": "linear", "epochs": 1},
    seeds=(0, 1),
)


@pytest.fixture
def tiny_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ray: None) -> Table:
    """A table whose first row cannot run. Workers find the scripts; a script's own do by itself."""
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    bad = replace(ROW, label="wrong", settings={"model": "cubic"}, seeds=(0,))
    table = Table("tiny", "Tiny rows", lambda dataset: [bad, ROW], datasets=("digits",))
    monkeypatch.setitem(TABLES, table.name, table)
    monkeypatch.chdir(tmp_path)
    return table


def test_seeds_are_jobs_of_the_pool_and_one_that_fails_leaves_the_others_alone(
    tiny_table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tiny", "--jobs", "2", "--no-tracking", "--out", "results"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert "wrong, seed 0: no value of model 'cubic'" in told.err
    assert "tiny, seed 0: done" in told.err and "tiny, seed 1: done" in told.err
    assert "| tiny | - | infinite | - |" in told.out
    assert len(list((tmp_path / "results" / "tiny").glob("tiny-seed?-*.json"))) == 2
    assert len(list(runs_folder().glob("*/result.json"))) == 2
    assert main([*words, "--jobs", "1"]) == 2  # what workers finished is not run again
    told = capsys.readouterr()
    assert "wrong, seed 0" in told.err and "tiny, seed" not in told.err
