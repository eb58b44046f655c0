"""Whether a store can be reached: one attempt, a few seconds, one line.

MLflow itself retries for minutes, both over HTTP and against a database. That is right in the
middle of an upload and wrong before a training that would be lost, so it is asked here first.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from dpray.errors import DprayError, TrackingFailed

_SECONDS = 4
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_ONE_ATTEMPT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_SECONDS),
}
_PLAIN_REASONS = (
    ("connection refused", "connection refused; is the server running?"),
    ("resolve|not known|No address", "its host name is not known"),
    ("timed out|timeout", "no answer in time"),
    ("error code 401|Unauthorized|not authenticated", "it asks for a user name and a password"),
    ("error code 403|Permission denied", "permission denied"),
    (
        "unable to open database|No such file|Not a directory|File exists",
        "its folder cannot be written",
    ),
    ("readonly database|Read-only", "it cannot be written"),
    ("not a database", "the file is not an SQLite database"),
    ("is locked", "another process keeps it locked"),
    (r"No module named '(\w+)'", r"the Python package \1 is not installed"),
)


def shown(uri: str) -> str:
    """A store's address as it may be printed: without user, password and query."""
    return re.sub(r"//[^/@]*@", "//", uri).partition("?")[0]


@contextmanager
def clear_failure(uri: str, doing: str = "use") -> Iterator[None]:
    """Turns whatever MLflow, a database driver or a socket raises into one line."""
    try:
        yield
    except DprayError:
        raise
    except Exception as error:
        raise TrackingFailed(
            f"cannot {doing} the MLflow store {shown(uri)}: {_reason(error, uri)}"
        ) from error


def _reason(error: Exception, uri: str) -> str:
    text = " ".join(str(error).split())
    for pattern, plain in _PLAIN_REASONS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return found.expand(plain)
    text = shown(text.replace(uri, shown(uri)))
    return text if len(text) <= 240 else f"{text[:240]}..."


@contextmanager
def one_attempt() -> Iterator[None]:
    """MLflow's HTTP calls in this block are made once and answered soon, or they fail."""
    before = {name: os.environ.get(name) for name in _ONE_ATTEMPT}
    os.environ.update(_ONE_ATTEMPT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite store, or None where the store is something else."""
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    name = make_url(uri).database
    if not name or name == ":memory:":
        raise TrackingFailed(
            f"the MLflow store {uri} lives in memory and ends with this process: "
            "name a file, as in sqlite:////home/me/mlflow.db"
        )
    return Path(name).absolute()


def try_database(uri: str) -> None:
    """Connects once to the database of an SQL store; an SQLite file must take a write."""
    kind = urlsplit(uri).scheme.partition("+")[0]
    if kind != "sqlite" and kind not in _DATABASE_PORTS:
        return
    file = sqlite_file(uri)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif host := urlsplit(uri).hostname:
        port = urlsplit(uri).port or _DATABASE_PORTS[kind]
        socket.create_connection((host, port), timeout=_SECONDS).close()

    from sqlalchemy import create_engine

    engine = create_engine(uri)
    try:
        with engine.connect() as connection:
            if file is not None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.rollback()
    finally:
        engine.dispose()
