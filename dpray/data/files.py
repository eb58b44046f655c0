"""The files that make up a fetched dataset, and whether those in the cache are the right ones.

Sizes are checked at every load. SHA-256 sums are checked once: a stamp beside the files records
the size and time at which a file was found right, and a file that has changed since is hashed
again. What a stamp cannot see is a disk that alters bytes without touching the time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dpray.data.folders import data_cache

_STAMP = "checked.json"


@dataclass(frozen=True)
class DataFile:
    name: str
    size: int  # of the uncompressed file, bytes
    sha256: str  # of the uncompressed file


@dataclass(frozen=True)
class FileSet:
    name: str  # of the dataset: the subfolder in the cache, the word in `dpray data fetch`
    files: tuple[DataFile, ...]
    # Other subfolders that a folder of the user's may keep them in.
    layouts: tuple[str, ...] = field(default=())

    @property
    def folder(self) -> Path:
        return data_cache() / self.name

    @property
    def cure(self) -> str:
        return f"`dpray data fetch {self.name}`"


def looks_complete(files: FileSet) -> bool:
    """Whether every file is there with its size: a glance for listings, nothing is hashed."""
    paths = [(files.folder / file.name, file.size) for file in files.files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def missing(files: FileSet) -> list[str]:
    return [file.name for file in files.files if not (files.folder / file.name).is_file()]


def first_fault(file: DataFile, path: Path) -> str | None:
    """What is wrong with the file at `path`, in a few words; None where it is right."""
    if not path.is_file():
        return f"{file.name} is missing"
    size = path.stat().st_size
    if size != file.size:
        return f"{file.name} has {size} bytes instead of {file.size}"
    with open(path, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        return f"{file.name} has another SHA-256 than it should ({found[:12]}...)"
    return None


def first_fault_in_cache(files: FileSet) -> str | None:
    """As `first_fault` over all files of the cache, trusting the stamp for unchanged files."""
    stamp = _read_stamp(files)
    checked = {}
    for file in files.files:
        path = files.folder / file.name
        state = _state(file, path)
        if state is None or stamp.get(file.name) != state:
            fault = first_fault(file, path)
            if fault:
                return fault
        checked[file.name] = state
    if checked != stamp:
        _write_stamp(files, checked)
    return None


def _state(file: DataFile, path: Path) -> list[object] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # The wanted sum is part of the state: a new table makes every stamp worthless.
    return (
        [status.st_size, status.st_mtime_ns, file.sha256] if status.st_size == file.size else None
    )


def _read_stamp(files: FileSet) -> dict[str, object]:
    try:
        stamp = json.loads((files.folder / _STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(files: FileSet, checked: dict[str, list[object] | None]) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=files.folder, prefix=".stamp-")
        with os.fdopen(handle, "w") as opened:
            json.dump(checked, opened)
        os.replace(temporary, files.folder / _STAMP)
    except OSError:
        pass  # a cache that cannot be written is only slower: the files are hashed again
