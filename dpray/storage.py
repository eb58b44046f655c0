"""Writing files that are whole or not there, and folders that only their owner may read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpray.errors import StorageFailed


def private_folder(path: Path) -> Path:
    """Makes a folder for private things: nobody but its owner may look inside."""
    with clear_errors(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` so that a crash leaves the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with clear_errors(path):
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turns the operating system's refusal to write into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full"
        elif error.errno == errno.EFBIG:
            reason = "the file would be larger than this account may write"
        else:
            reason = error.strerror or str(error)
        raise StorageFailed(
            f"cannot write {path}: {reason}; what was there before is intact"
        ) from error
