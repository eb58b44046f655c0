"""Jobs on a cluster: `dpray ...` commands sent to the dashboard of a Ray head, over HTTP.

The words of a command are quoted and run there as `dpray <words>`; the folder they are sent from
goes with them, without what is private or large. Anything between here and there that goes wrong
(address, token, version, network) is one line. Sending a job charges nothing: the ledger is paid
by the run itself, on the cluster.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import ray
import yaml  # type: ignore[import-untyped]
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from dpray.data.folders import data_cache, given_data, home
from dpray.errors import BadInput, ClusterFailed

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
# What never travels with a job, in the language of .gitignore. Packages lie unencrypted on the
# head and whoever has the token can fetch them, so images and keys stay where they are.
EXCLUDES = (
    *("/data", "/mlruns", "/mlflow.db"),  # at the top alone: packages have modules of data
    *(".git", ".venv", "private", "*.npz", "*.npy", "*.pt"),
    *(".env", "*.pem", "*.key", "auth_token", ".ssh", ".aws", ".kube"),
    *("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
)
RUNTIME_ENV_FILE = Path("cluster") / "runtime_env.yaml"
_SECONDS_TO_ANSWER = 8.0
_FAILURES_TOLERATED = 5
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(^|_)KEY", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


@dataclass(frozen=True)
class Job:
    """What the cluster says about a job that was submitted to it."""

    id: str
    status: str
    command: str
    message: str | None
    exit_code: int | None
    started: float | None  # seconds since 1970
    ended: float | None

    @property
    def is_over(self) -> bool:
        return JobStatus(self.status).is_terminal()

    @property
    def exit_code_here(self) -> int:
        """The exit code of a command that stands for the job: 0 only when the job succeeded."""
        if self.status == JobStatus.SUCCEEDED.value:
            return 0
        if self.status != JobStatus.FAILED.value or not self.exit_code:
            return 1
        return self.exit_code if self.exit_code > 0 else 128 - self.exit_code  # by a signal


class JobServer:
    """The job interface of one cluster. Made by `connect`, which has checked that it answers."""

    def __init__(self, address: str, version: str, client: JobSubmissionClient) -> None:
        self.address, self.version, self._client = address, version, client

    def submit(
        self, words: Sequence[str], runtime_env: dict[str, Any], job_id: str | None = None
    ) -> str:
        """Starts `dpray <words>` on the cluster and returns the job's id."""
        command = entrypoint(words)
        if self.version != ray.__version__:
            raise ClusterFailed(
                f"the cluster at {self.address} runs Ray {self.version} and this dpray Ray "
                f"{ray.__version__}: a job needs the same version on both sides"
            )
        if job_id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", job_id):
            raise BadInput(f"job id {job_id!r}: use letters, digits, '_', '-' and '.'")
        with self._clear_errors():
            submitted: str = self._client.submit_job(
                entrypoint=command, runtime_env=runtime_env, submission_id=job_id
            )
        return submitted

    def job(self, job_id: str) -> Job:
        with self._clear_errors():
            return _job(self._client.get_job_info(job_id))

    def jobs(self) -> list[Job]:
        """Every job that was submitted, the latest last; drivers started by hand are left out."""
        with self._clear_errors():
            details = self._client.list_jobs()
        found = [_job(detail) for detail in details if detail.submission_id]
        return sorted(found, key=lambda job: job.started or 0.0)

    def logs(self, job_id: str) -> str:
        with self._clear_errors():
            logs: str = self._client.get_job_logs(job_id)
        return logs

    def stop(self, job_id: str) -> bool:
        """Asks a job to stop; False when it was over already."""
        with self._clear_errors():
            stopped: bool = self._client.stop_job(job_id)
        return stopped

    def wait(self, job_id: str) -> Job:
        """Waits for the end of a job, through short failures of the network."""
        pause, failures = 0.5, 0
        while True:
            try:
                job, failures = self.job(job_id), 0
                if job.is_over:
                    return job
            except ClusterFailed:
                failures += 1
                if failures > _FAILURES_TOLERATED:
                    raise
            time.sleep(pause)
            pause = min(5.0, 1.2 * pause)

    def follow(self, job_id: str, write: Callable[[str], object]) -> Job:
        """Passes the log on to `write` as it grows, until the job is over."""
        written, failures = 0, 0

        async def tail() -> None:
            nonlocal written
            position = 0  # a connection starts the log anew: what was written is skipped
            async for text in self._client.tail_job_logs(job_id):
                fresh = text[max(0, written - position) :]
                position += len(text)
                if fresh:
                    write(fresh)
                    written += len(fresh)

        self.job(job_id)  # a job that does not exist is no failure of the network
        while True:
            try:
                asyncio.run(tail())
                job, failures = self.job(job_id), 0
                if job.is_over:
                    return job
            except BrokenPipeError:
                raise  # whoever reads our output has left
            except (ClusterFailed, RuntimeError, OSError, aiohttp.ClientError) as error:
                failures += 1
                if failures > _FAILURES_TOLERATED:
                    raise ClusterFailed(
                        f"lost the log of job {job_id} at {self.address} ({_short(error)}); the "
                        f"job may go on: dpray jobs status {job_id}"
                    ) from None
            time.sleep(1.0)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Ray's refusals, which run over many lines, as one line each."""
        try:
            yield
        except AuthenticationError:
            raise _refused(self.address, given=True) from None
        except OSError as error:  # also what `requests` raises
            raise ClusterFailed(f"lost the cluster at {self.address}: {_short(error)}") from None
        except (RuntimeError, ValueError) as error:
            text = str(error)
            if missing := re.search(r"Job (\S+) does not exist", text):
                raise BadInput(
                    f"no job {missing[1]!r} at {self.address}; `dpray jobs` lists them"
                ) from None
            if taken := re.search(r"submission_id (\S+) already exists", text):
                raise BadInput(f"job id {taken[1]!r} is taken; choose another --job-id") from None
            raise ClusterFailed(f"the cluster at {self.address} says: {_short(error)}") from None


def connect(address: str | None = None) -> JobServer:
    """The job server at `address`, after it has answered and accepted the token."""
    address = find_address(address)
    token = find_token()
    if token is None and os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        raise _refused(address, given=False)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    version = _ask_version(address, headers)
    for name in ("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)
    # It warns of leaving out .git and .venv, which is what `EXCLUDES` asks for.
    logging.getLogger("ray._private.runtime_env.working_dir").setLevel(logging.ERROR)
    with _job_address(address):
        return JobServer(address, version, JobSubmissionClient(address, headers=headers))


def find_address(given: str | None) -> str:
    """The address given, else that of the environment, else the dashboard of this machine."""
    source, address = "--address", given
    for variable in ADDRESS_VARIABLES:
        if not address:
            source, address = variable, os.environ.get(variable)
    address = (address or DEFAULT_ADDRESS).rstrip("/")
    if not re.fullmatch(r"https?://[^/\s@?#]+(/[^\s?#]*)?", address):
        raise BadInput(
            f"{source} {address} is not the address of a dashboard: give it as http://HOST:8265 "
            "(with --address, or RAY_API_SERVER_ADDRESS)"
        )
    return address


def find_token() -> str | None:
    """The token, from the places Ray looks in; also when only RAY_AUTH_TOKEN is set."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return None
    token = os.environ.get("RAY_AUTH_TOKEN")
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
    if not token and (named or path.exists()):
        try:
            token = path.read_text()
        except (OSError, UnicodeDecodeError):
            raise ClusterFailed(f"cannot read the token from the file {path}") from None
    token = (token or "").strip()
    if not (token.isascii() and token.isprintable()):
        raise BadInput("the token holds characters that a token cannot have: see RAY_AUTH_TOKEN")
    return token or None


def entrypoint(words: Sequence[str]) -> str:
    """`dpray <words>` for a shell, every word quoted."""
    words = words[1:] if words and words[0] == "dpray" else words
    if not words:
        raise BadInput("name the command to run after --, as in: dpray submit -- methods")
    return shlex.join(["dpray", *words])


def make_runtime_env(working_dir: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """What a job finds around it: the folder it was sent from, and variables.

    `cluster/runtime_env.yaml` in that folder is the start; `EXCLUDES` and dpray's own folders
    (runs with their keys and ledgers, datasets) are left out whatever that file says.
    """
    folder = working_dir.expanduser().resolve()
    if not folder.is_dir():
        raise BadInput(f"--working-dir {working_dir} is not a folder")
    if folder in (Path.home().resolve(), Path(folder.anchor)):
        raise BadInput(f"--working-dir {folder} would send everything you have: name a project")
    runtime_env = _read_runtime_env(folder / RUNTIME_ENV_FILE)
    own = [path.resolve() for path in (home(), data_cache(), given_data()) if path is not None]
    if any(folder.is_relative_to(path) for path in own):
        raise BadInput(f"--working-dir {folder} holds private data or runs: name a project")
    inside = [f"/{path.relative_to(folder)}" for path in own if path.is_relative_to(folder)]
    excludes = [*runtime_env.get("excludes", ()), *EXCLUDES, *inside]
    return {
        **runtime_env,
        "working_dir": str(folder),
        "excludes": list(dict.fromkeys(excludes)),
        "env_vars": {**runtime_env.get("env_vars", {}), **variables},
    }


def parse_variables(words: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for the value it has here. Secrets are refused: jobs are listed."""
    variables = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadInput(f"--env {word!r} is not NAME=VALUE; the command goes after --")
        if not equals and name not in os.environ:
            raise BadInput(f"--env {name}: it is not set here; give it as {name}=VALUE")
        value = value if equals else os.environ[name]
        if _SECRET_NAME.search(name) or _PASSWORD_IN_URL.search(value):
            raise BadInput(
                f"--env {name} looks like a secret, and a job's variables can be read by all who "
                "use the cluster: set it in the environment of the nodes instead"
            )
        variables[name] = value
    return variables


def _read_runtime_env(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"cannot read {path}: {_short(error)}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} must hold a mapping of runtime environment fields")
    return content


def _ask_version(address: str, headers: dict[str, str]) -> str:
    """The Ray version of the cluster. Ray's own client would wait for minutes."""
    request = urllib.request.Request(f"{address}/api/version", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER) as answer:
            return str(json.load(answer)["ray_version"])
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise _refused(address, given=bool(headers)) from None
        raise ClusterFailed(f"{address} is no Ray dashboard: it answers {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise ClusterFailed(
            f"no Ray cluster answers at {address} ({_short(reason)}): check --address, and that "
            "the head runs or the tunnel to it is open"
        ) from None
    except Exception:  # an answer that is not HTTP, not JSON, or not Ray's
        raise ClusterFailed(f"{address} is no Ray dashboard: it answers something else") from None


def _refused(address: str, *, given: bool) -> ClusterFailed:
    what = "refused the token" if given else "asks for a token"
    return ClusterFailed(
        f"the cluster at {address} {what}: set RAY_AUTH_TOKEN to the one its head was started with"
    )


@contextmanager
def _job_address(address: str) -> Iterator[None]:
    """Lets `address` win: Ray's client prefers the environment to its argument."""
    before = os.environ.get(ADDRESS_VARIABLES[0])
    os.environ[ADDRESS_VARIABLES[0]] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[ADDRESS_VARIABLES[0]]
        else:
            os.environ[ADDRESS_VARIABLES[0]] = before


def _job(detail: JobDetails) -> Job:
    status = JobStatus(detail.status)
    message = detail.message.splitlines()[0] if detail.message else None
    return Job(
        id=str(detail.submission_id or detail.job_id),
        status=status.value,
        command=detail.entrypoint,
        message=message,
        exit_code=detail.driver_exit_code,
        started=detail.start_time / 1000 if detail.start_time else None,
        ended=detail.end_time / 1000 if detail.end_time else None,
    )


def _short(error: object) -> str:
    """The last line of a message, where tracebacks say what happened, kept to one screen line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
