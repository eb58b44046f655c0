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
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package

from dpray.distributed import jobs
from dpray.errors import BadInput, ClusterFailed

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def test_an_address_where_nothing_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "any")
    with pytest.raises(ClusterFailed, match=r"no Ray cluster answers at .*refused"):
        jobs.connect(f"http://127.0.0.1:{free_port()}")


def test_an_address_that_is_silent_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "any")
    monkeypatch.setattr(jobs, "_SECONDS_TO_ANSWER", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        with pytest.raises(ClusterFailed, match="no Ray cluster answers"):
            jobs.connect(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - started < 10


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A web server on this machine that gives one answer to everything."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "any")
    servers: list[HTTPServer] = []

    def start(body: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *words: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_another_version_of_ray_is_refused(answering: Any) -> None:
    server = jobs.connect(answering(json.dumps({"version": "4", "ray_version": "2.9.3"})))
    with pytest.raises(ClusterFailed, match=r"runs Ray 2\.9\.3 and this dpray Ray"):
        server.submit(["methods"], {})


def test_a_server_that_is_not_ray_is_refused(answering: Any) -> None:
    with pytest.raises(ClusterFailed, match="is no Ray dashboard"):
        jobs.connect(answering("<html>hello</html>"))


def test_words_reach_the_job_as_they_were_typed() -> None:
    words = ["run", "dp-sgd", "--dataset", "my images.npz", "--set", "model=cnn; rm -rf /"]
    command = jobs.entrypoint(words)
    printed = subprocess.run(
        ["sh", "-c", command.replace("dpray", "printf '%s\\n'", 1)], capture_output=True, text=True
    )
    assert printed.stdout.splitlines() == words
    assert jobs.entrypoint(["dpray", *words]) == command


@pytest.mark.parametrize("words", [[], ["dpray"]])
def test_an_empty_command_is_refused(words: list[str]) -> None:
    with pytest.raises(BadInput, match="after --"):
        jobs.entrypoint(words)


def test_the_address_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in jobs.ADDRESS_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert jobs.find_address(None) == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    assert jobs.find_address(None) == "http://head:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "https://api/ray/")
    assert jobs.find_address(None) == "https://api/ray"
    assert jobs.find_address("http://mine:1") == "http://mine:1"


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "ray://head:10001", "http://"])
def test_what_is_no_dashboard_address_is_refused(address: str) -> None:
    with pytest.raises(BadInput, match="http://HOST:8265"):
        jobs.find_address(address)


def test_variables_are_taken_from_here_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    found = jobs.parse_variables(["MLFLOW_TRACKING_URI", "DPRAY_HOME=/shared/a=b"])
    assert found == {"MLFLOW_TRACKING_URI": "http://mlflow:5000", "DPRAY_HOME": "/shared/a=b"}


@pytest.mark.parametrize(
    "word",
    ["RAY_AUTH_TOKEN=x", "AWS_SECRET_ACCESS_KEY=x", "MLFLOW_TRACKING_URI=http://me:word@host"],
)
def test_secrets_are_not_sent_with_a_job(word: str) -> None:
    with pytest.raises(BadInput, match="looks like a secret"):
        jobs.parse_variables([word])


def test_private_files_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    monkeypatch.setenv("DPRAY_HOME", str(project / "my runs"))
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))
    kept = ["code.py", "package/data/files.py", "cluster/runtime_env.yaml"]
    private = ["my runs/r/spec.json", "x/private/key", "faces.npz", "data/x", "a/id.pem"]
    for name in (*kept, *private):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    (project / "cluster/runtime_env.yaml").write_text("env_vars: {A: '1'}\nexcludes: [other]\n")
    runtime_env = jobs.make_runtime_env(project, {"B": "2"})
    assert runtime_env["env_vars"] == {"A": "1", "B": "2"}
    assert packed(project, runtime_env["excludes"], tmp_path) == sorted(kept)


def test_dpray_itself_is_sent_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPRAY_HOME", str(tmp_path / "home"))
    root = Path(__file__).parents[2]
    sent = packed(root, jobs.make_runtime_env(root, {})["excludes"], tmp_path)
    modules = [str(path.relative_to(root)) for path in (root / "dpray").rglob("*.py")]
    assert set(modules) <= set(sent)
    assert not [name for name in sent if name.startswith((".venv", ".git/"))]


def packed(folder: Path, excludes: list[str], tmp_path: Path) -> list[str]:
    """The files of the package that Ray makes of a folder."""
    package = tmp_path / "package.zip"
    create_package(str(folder), package, include_gitignore=True, excludes=excludes)
    return sorted(name for name in ZipFile(package).namelist() if not name.endswith("/"))


def test_a_folder_that_holds_everything_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="everything you have"):
        jobs.make_runtime_env(Path.home(), {})
    with pytest.raises(BadInput, match="is not a folder"):
        jobs.make_runtime_env(Path("no-such-folder"), {})


def test_a_log_that_breaks_off_is_taken_up_where_it_stopped() -> None:
    class Client:
        """The two calls `follow` makes, over a connection that breaks once."""

        connections = 0

        def get_job_info(self, job_id: str) -> Any:
            over = self.connections > 1
            return SimpleNamespace(
                submission_id=job_id,
                job_id=None,
                status="SUCCEEDED" if over else "RUNNING",
                entrypoint="dpray methods",
                message=None,
                driver_exit_code=0 if over else None,
                start_time=1000,
                end_time=2000 if over else None,
            )

        async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
            self.connections += 1
            yield "one\n"
            if self.connections == 1:
                yield "tw"
                raise RuntimeError("closed unexpectedly")
            yield "two\nthree\n"

    written: list[str] = []
    server = jobs.JobServer("http://head:8265", "2.60.0", Client())  # type: ignore[arg-type]
    assert server.follow("j", written.append).exit_code_here == 0
    assert "".join(written) == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("status", "code", "here"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 2, 2),
        ("FAILED", None, 1),
        ("FAILED", -9, 137),
        ("STOPPED", None, 1),
    ],
)
def test_exit_codes(status: str, code: int | None, here: int) -> None:
    assert jobs.Job("j", status, "dpray", None, code, None, None).exit_code_here == here
