"""What is decided before a job reaches a cluster: addresses, words, files and secrets."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
from ports import free_port
from ray._private.runtime_env.packaging import create_package

from dpray.distributed import jobs
from dpray.errors import BadInput, ClusterFailed


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
