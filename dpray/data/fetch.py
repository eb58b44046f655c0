"""Fetches a dataset into the cache: from the first source whose files pass the checks.

Files arrive in a temporary folder inside the cache, are checked there, and move into place by
rename, so the cache never holds a torn file. A lock lets one process fetch at a time; one that
had to wait finds the files complete and is done.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpray.data.files import FileSet, first_fault, first_fault_in_cache, missing
from dpray.data.folders import data_cache, given_data
from dpray.data.sources import FULL, Say, Source, SourceFailed, local_folder, one_line
from dpray.errors import BadData, BadInput, StorageFailed

_TEMPORARY = ".fetch-"


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def fetch(
    files: FileSet,
    sources: Sequence[Source],
    *,
    from_folder: Path | None = None,
    say: Say = to_stderr,
) -> Path:
    """Makes the cache hold `files`, whole and checked, and gives their folder.

    Order: `from_folder`, else the folder in DPRAY_DATA, then `sources`. Damaged files in the
    cache are replaced.
    """
    if from_folder is not None and not from_folder.is_dir():
        raise BadInput(f"no folder {str(from_folder)!r} to take {files.name} from")
    given = from_folder or given_data()
    order = [*([local_folder(given)] if given else []), *sources]
    with fetch_lock(files.name, say), _storage_errors(files.name):
        fault = first_fault_in_cache(files)
        if fault is None:
            say(f"{files.name}: already in the cache")
            return files.folder
        if len(missing(files)) < len(files.files):
            say(f"{files.name}: fetching again, for {fault}")
        _from_first_that_works(files, order, say)
        first_fault_in_cache(files)  # writes the stamp
    return files.folder


def require(files: FileSet, sources: Sequence[Source], *, fetch_missing: bool, say: Say) -> Path:
    """The folder of `files`, fetched where some are missing; refuses damaged ones by name."""
    absent = missing(files)
    if absent and fetch_missing:
        return fetch(files, sources, say=say)
    if absent:
        raise BadData(f"{files.name} is not in {files.folder}: fetch it with {files.cure}")
    fault = first_fault_in_cache(files)
    if fault:
        raise BadData(f"{fault} in {files.folder}: get it anew with {files.cure}")
    return files.folder


@contextmanager
def fetch_lock(name: str, say: Say) -> Iterator[None]:
    """One process at a time fetches `name`. The system frees the lock of one that dies."""
    path = data_cache() / f"{name}.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StorageFailed(f"cannot write to {path.parent}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another process that is fetching it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _from_first_that_works(files: FileSet, order: Sequence[Source], say: Say) -> None:
    files.folder.mkdir(parents=True, exist_ok=True)
    # Under the lock nobody else is fetching: what lies here was left by a process that died.
    for left_behind in files.folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    reasons = []
    for source in order:
        say(f"{files.name}: trying {source.title}")
        with tempfile.TemporaryDirectory(dir=files.folder, prefix=_TEMPORARY) as temporary:
            reason = _try_source(source, files, Path(temporary), say)
            if reason is None:
                for file in files.files:
                    os.replace(Path(temporary) / file.name, files.folder / file.name)
                say(f"{files.name}: fetched and checked")
                return
        say(f"{files.name}: not from there, {reason}")
        reasons.append(f"{source.title}: {reason}")
    raise BadData(
        f"cannot get {files.name} ({'; '.join(reasons) or 'there is no source'}); put "
        f"{', '.join(file.name for file in files.files)} into a folder and name it in DPRAY_DATA"
    )


def _try_source(source: Source, files: FileSet, temporary: Path, say: Say) -> str | None:
    """Why the source did not give the right files; None where it did."""
    try:
        source.put(files, temporary, say)
    except SourceFailed as failure:
        return str(failure)
    except OSError as error:
        if error.errno in FULL:
            raise
        return one_line(error)
    faults = (first_fault(file, temporary / file.name) for file in files.files)
    return next((fault for fault in faults if fault), None)


@contextmanager
def _storage_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = "no space left" if error.errno in FULL else (error.strerror or one_line(error))
        raise StorageFailed(
            f"cannot keep {name} in {data_cache()}: {what}; free some space or name another "
            "folder in DPRAY_CACHE"
        ) from None
