"""A cache of one's own for every test, and a tiny dataset of two files with its own sums."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dpray.data.files import DataFile, FileSet

CONTENTS = {"first-file": bytes(range(256)) * 40, "second-file": b"labels" * 7}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DPRAY_CACHE", str(folder))
    monkeypatch.delenv("DPRAY_DATA", raising=False)
    return folder


@pytest.fixture
def tiny() -> FileSet:
    files = tuple(
        DataFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in CONTENTS.items()
    )
    return FileSet("tiny", files, layouts=("Tiny/raw",))


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder that holds the tiny dataset."""
    folder = tmp_path / "given"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    return folder
