"""Fetching: sources in order, nothing torn in the cache, one process at a time."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import shutil
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dpray.data.fetch import fetch, require
from dpray.data.files import FileSet, first_fault_in_cache
from dpray.data.sources import Say, Source, SourceFailed, debian_package, local_folder, npm_package
from dpray.errors import BadData, BadInput, StorageFailed


def quiet(line: str) -> None:
    pass


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


WHOLE = {"first-file", "second-file", "checked.json"}


def test_a_local_folder_is_copied_into_the_cache(tiny: FileSet, given: Path) -> None:
    fetch(tiny, [], from_folder=given, say=quiet)
    assert names_in(tiny.folder) == WHOLE
    assert (tiny.folder / "first-file").read_bytes() == (given / "first-file").read_bytes()


@pytest.mark.parametrize("layout", ["tiny", "Tiny/raw"])
def test_compressed_files_in_a_subfolder_are_found(
    tiny: FileSet, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    place = tmp_path / "mine" / layout
    place.mkdir(parents=True)
    for path in given.iterdir():
        (place / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setenv("DPRAY_DATA", str(tmp_path / "mine"))
    fetch(tiny, [], say=quiet)
    assert names_in(tiny.folder) == WHOLE


def test_a_subfolder_wins_over_files_of_the_same_name_beside_it(tiny: FileSet, given: Path) -> None:
    shutil.copytree(given, given / "tiny")
    (given / "first-file").write_bytes(b"of another dataset")
    fetch(tiny, [], from_folder=given, say=quiet)
    assert first_fault_in_cache(tiny) is None


def test_sources_are_tried_in_order_with_a_line_for_each(tiny: FileSet, given: Path) -> None:
    def fail(files: FileSet, into: Path, say: Say) -> None:
        raise SourceFailed("it is shut on Sundays")

    lines: list[str] = []
    fetch(tiny, [Source("the shop", fail), local_folder(given)], say=lines.append)
    assert lines == [
        "tiny: trying the shop",
        "tiny: not from there, it is shut on Sundays",
        f"tiny: trying the folder {given}",
        "tiny: fetched and checked",
    ]


def test_when_no_source_works_the_error_names_them_all(
    tiny: FileSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", "")
    sources = [npm_package("a-package", "package"), debian_package("another", "usr")]
    words = "empty: it does not hold first-file.*npm is not installed.*apt-get is not installed"
    with pytest.raises(BadData, match=words):
        fetch(tiny, sources, from_folder=empty, say=quiet)


def test_a_folder_that_is_not_there_is_refused_before_any_source(tiny: FileSet) -> None:
    with pytest.raises(BadInput, match="no folder '/nowhere' to take tiny from"):
        fetch(tiny, [], from_folder=Path("/nowhere"), say=quiet)


def test_a_torn_download_leaves_no_file_behind(tiny: FileSet, given: Path) -> None:
    path = given / "second-file"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadData, match="second-file has 41 bytes instead of 42"):
        fetch(tiny, [], from_folder=given, say=quiet)
    assert names_in(tiny.folder) == set()


def test_a_file_with_another_sum_is_not_taken(tiny: FileSet, given: Path) -> None:
    path = given / "second-file"
    path.write_bytes(path.read_bytes().upper())
    with pytest.raises(BadData, match="second-file has another SHA-256"):
        fetch(tiny, [], from_folder=given, say=quiet)
    assert names_in(tiny.folder) == set()


def test_a_torn_gz_is_a_failed_source(tiny: FileSet, given: Path) -> None:
    path = given / "first-file"
    (given / "first-file.gz").write_bytes(gzip.compress(path.read_bytes())[:-20])
    path.unlink()
    with pytest.raises(BadData, match=r"first-file\.gz is damaged"):
        fetch(tiny, [], from_folder=given, say=quiet)


def test_what_a_dead_process_left_is_cleared_away(tiny: FileSet, given: Path) -> None:
    (tiny.folder / ".fetch-dead").mkdir(parents=True)
    (tiny.folder / ".fetch-dead" / "first-file").write_bytes(b"half")
    fetch(tiny, [], from_folder=given, say=quiet)
    assert names_in(tiny.folder) == WHOLE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_one_clear_line(tiny: FileSet) -> None:
    def fill(files: FileSet, into: Path, say: Say) -> None:
        Path("/dev/full").write_bytes(b"anything")

    with pytest.raises(StorageFailed, match=r"cannot keep tiny in .*: no space left"):
        fetch(tiny, [Source("a big one", fill)], say=quiet)
    assert names_in(tiny.folder) == set()


@pytest.mark.parametrize("damage", [b"short", None])
def test_a_corrupt_file_is_refused_with_its_name_and_the_cure(
    tiny: FileSet, given: Path, damage: bytes | None
) -> None:
    fetch(tiny, [], from_folder=given, say=quiet)
    path = tiny.folder / "first-file"
    path.write_bytes(damage or path.read_bytes()[::-1])  # None: same size, other bytes
    with pytest.raises(BadData, match=r"first-file has .*`dpray data fetch tiny`"):
        require(tiny, [], fetch_missing=True, say=quiet)


def test_fetch_replaces_a_corrupt_file(tiny: FileSet, given: Path) -> None:
    fetch(tiny, [], from_folder=given, say=quiet)
    (tiny.folder / "first-file").write_bytes(b"short")
    lines: list[str] = []
    fetch(tiny, [], from_folder=given, say=lines.append)
    assert lines[0] == "tiny: fetching again, for first-file has 5 bytes instead of 10240"
    assert first_fault_in_cache(tiny) is None


def test_an_unchanged_file_is_not_hashed_again(tiny: FileSet, given: Path) -> None:
    fetch(tiny, [], from_folder=given, say=quiet)
    path = tiny.folder / "first-file"
    status = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    # With size and time put back only a hash could see the change: none is taken.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert first_fault_in_cache(tiny) is None


def test_missing_files_are_named_with_the_cure_where_fetching_is_off(tiny: FileSet) -> None:
    with pytest.raises(BadData, match=r"tiny is not in .*`dpray data fetch tiny`"):
        require(tiny, [], fetch_missing=False, say=quiet)


def _fetch_and_wait(files: FileSet, given: Path, other_waits: Event, lines: Queue) -> None:
    def put(wanted: FileSet, into: Path, say: Say) -> None:
        lines.put("copying")
        other_waits.wait(20)  # ends only when the other process has come to the lock
        local_folder(given).put(wanted, into, say)

    def say(line: str) -> None:
        if "waiting for another process" in line:
            other_waits.set()
        lines.put(line)

    fetch(files, [Source("a slow one", put)], say=say)
    lines.put("done")


def test_two_processes_fetching_at_once_both_succeed_and_one_copies(
    tiny: FileSet, given: Path
) -> None:
    spawn = multiprocessing.get_context("spawn")
    lines, other_waits = spawn.Queue(), spawn.Event()
    arguments = (tiny, given, other_waits, lines)
    workers = [spawn.Process(target=_fetch_and_wait, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    said: list[str] = []
    while said.count("done") < 2:
        said.append(lines.get(timeout=60))
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert other_waits.is_set()
    assert said.count("copying") == 1
    assert names_in(tiny.folder) == WHOLE
