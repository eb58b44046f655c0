"""Jobs on a real head with its token on: one head for the module, on ports and a folder of its own.

The head is started in a process group of its own and that group alone is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ports import free_port

BIN = Path(sys.executable).parent
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")
SECONDS_TO_START = 60


@dataclass(frozen=True)
class Head:
    address: str
    environment: dict[str, str]
    folder: Path  # a working folder with next to nothing in it

    def run(self, *words: object, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, words)),
            env={**self.environment, **changes},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def dpray(self, *words: object, **changes: str) -> subprocess.CompletedProcess[str]:
        return self.run(BIN / "dpray", *words, **changes)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    token, port = secrets.token_hex(16), free_port()
    short = Path(tempfile.mkdtemp(prefix="rj", dir="/tmp"))  # names of sockets must be short
    environment = {key: value for key, value in os.environ.items() if key not in AUTH}
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{BIN}{os.pathsep}{environment['PATH']}",  # so that jobs find `dpray`
        "DPRAY_HOME": str(short / "home"),
    }
    (short / "work").mkdir()
    with (short / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=1"),
                *(f"--port={free_port()}", f"--dashboard-port={port}"),
                f"--dashboard-agent-listen-port={free_port()}",
                f"--ray-client-server-port={free_port()}",
                *("--min-worker-port=0", "--max-worker-port=0"),
                *("--object-store-memory=100000000", f"--temp-dir={short / 't'}"),
            ],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        found = Head(f"http://127.0.0.1:{port}", environment, short / "work")
        wait_for(process, found.address, token, short / "log")
        yield found
    finally:
        end_group(process)
        shutil.rmtree(short, ignore_errors=True)


def wait_for(process: subprocess.Popen[bytes], address: str, token: str, log: Path) -> None:
    request = urllib.request.Request(
        f"{address}/api/version", headers={"Authorization": f"Bearer {token}"}
    )
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the head did not start: {log.read_text()[-2000:]}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the head and what it started: our own group, and nothing else."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_job_is_followed_to_its_end(head: Head) -> None:
    done = head.dpray("submit", "--address", head.address, "--follow", "--", "methods")
    assert done.returncode == 0, done.stderr
    assert "dp-sgd" in done.stdout
    assert "succeeded" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_exit_code_of_a_failed_job_is_the_jobs_own(head: Head) -> None:
    # The address comes from the environment here.
    changes = {"RAY_API_SERVER_ADDRESS": head.address}
    done = head.dpray("submit", "--job-id", "wrong", "--", "run", "nonsense", **changes)
    assert done.returncode == 2, done.stderr
    assert "failed: exit code 2" in done.stdout
    listed = json.loads(head.dpray("jobs", "--json", **changes).stdout)
    job = next(job for job in listed if job["id"] == "wrong")
    assert (job["status"], job["command"]) == ("FAILED", "dpray run nonsense")
    assert "no method 'nonsense'" in head.dpray("jobs", "logs", "wrong", **changes).stdout
    again = head.dpray("submit", "--job-id", "wrong", "--", "methods", **changes)
    assert again.returncode == 2
    assert "'wrong' is taken" in again.stderr


def test_plain_ray_job_submit_works_as_typed(head: Head) -> None:
    words = ["--address", head.address, "--working-dir", ".", "--", "dpray", "plan"]
    words += ["--records", "60000", "--batch-size", "256", "--epochs", "1"]
    done = head.run(BIN / "ray", "job", "submit", *words, "--noise-multiplier", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epsilon" in done.stdout


def test_leaving_a_job_alone_and_stopping_it(head: Head) -> None:
    words = ["--address", head.address, "--submission-id", "sleeper", "--no-wait"]
    assert head.run(BIN / "ray", "job", "submit", *words, "--", "sleep", "300").returncode == 0
    where = ("--address", head.address)
    follower = subprocess.Popen(
        [str(BIN / "dpray"), "jobs", "logs", "sleeper", "--follow", *where],
        env=head.environment,
        cwd=head.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline()  # the log has begun, so it is being followed
    follower.send_signal(signal.SIGINT)
    _, notes = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert "sleeper goes on" in notes
    assert "Traceback" not in notes

    assert "was asked to stop" in head.dpray("jobs", "stop", "sleeper", *where).stderr
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = head.dpray("jobs", "status", "sleeper", "--json", *where)
        if json.loads(status.stdout)["status"] == "STOPPED":
            break
        time.sleep(0.5)
    assert json.loads(status.stdout)["status"] == "STOPPED"
    assert status.returncode == 1


def test_a_wrong_token_is_one_line(head: Head) -> None:
    done = head.dpray("jobs", "--address", head.address, RAY_AUTH_TOKEN="not-the-one")
    assert done.returncode == 2
    assert done.stderr.startswith(f"dpray: the cluster at {head.address} refused the token: set")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", ["token", ""])
def test_a_missing_token_is_one_line(head: Head, mode: str, tmp_path: Path) -> None:
    changes = {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": mode, "HOME": str(tmp_path)}
    done = head.dpray("submit", "--address", head.address, "--", "methods", **changes)
    assert done.returncode == 2
    assert "asks for a token: set RAY_AUTH_TOKEN" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_token_is_found_in_a_file_too(head: Head, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(head.environment["RAY_AUTH_TOKEN"] + "\n")
    changes = {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    assert head.dpray("jobs", "--address", head.address, **changes).returncode == 0


def test_a_job_that_does_not_exist_is_one_line(head: Head) -> None:
    done = head.dpray("jobs", "logs", "nobody", "--follow", "--address", head.address)
    assert done.returncode == 2
    assert done.stderr == f"dpray: no job 'nobody' at {head.address}; `dpray jobs` lists them\n"
