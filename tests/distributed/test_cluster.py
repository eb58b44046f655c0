"""Joining and starting Ray: what goes wrong is one line and soon, what goes right is silent."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray
from ports import free_port

from dpray.distributed import probe
from dpray.distributed.cluster import Cluster, connect, threads_per_worker, worker_environment
from dpray.distributed.resources import Node, Resources
from dpray.errors import ClusterFailed

TOKEN = "a" * 64
CONNECT = """
import sys, time
from dpray.distributed.cluster import connect, disconnect
from dpray.errors import ClusterFailed
started = time.monotonic()
try:
    cluster = connect(*sys.argv[1:])
    print(f"{cluster.resources()}, local={cluster.local}", file=sys.stderr)
    disconnect()
except ClusterFailed as error:
    print(f"ClusterFailed: {error}", file=sys.stderr)
print(f"seconds {time.monotonic() - started:.1f}", file=sys.stderr)
"""


def in_a_process(*arguments: str, **environment: str) -> tuple[str, list[str], float]:
    """Standard output, the lines on standard error and the seconds of `connect` elsewhere."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    *lines, seconds = done.stderr.strip().splitlines()
    return done.stdout, lines, float(seconds.split()[1])


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head of its own process group, guarded by `TOKEN`."""
    port, folder = free_port(), Path("/tmp") / f"dpray-{os.getpid()}"  # sockets want a short path
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    command += [f"--temp-dir={folder}", "--object-store-memory=80000000"]
    command += [f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        **{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"},
    }
    log = tmp_path_factory.mktemp("head") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=out, stderr=out
        )
    deadline = time.monotonic() + 60
    while "block forever" not in log.read_text() and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        time.sleep(0.5)
    yield f"127.0.0.1:{port}"
    # `ray stop` would stop every Ray of this machine; the group is this head and its children.
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(["rm", "-rf", str(folder)], check=False)


def test_a_local_ray_starts_without_a_word_and_leaves_no_token_behind(tmp_path: Path) -> None:
    out, lines, _ = in_a_process(HOME=str(tmp_path))
    assert out == ""
    assert len(lines) == 1 and lines[0].endswith("on 1 node, local=True")
    assert list(tmp_path.iterdir()) == []


def test_the_token_of_a_local_ray_is_random(local_ray: Cluster) -> None:
    assert re.fullmatch("[0-9a-f]{64}", os.environ["RAY_AUTH_TOKEN"])
    assert len(set(os.environ["RAY_AUTH_TOKEN"])) > 4


def test_a_second_connect_is_the_same_cluster(local_ray: Cluster) -> None:
    assert connect() == connect("local") == connect(local_ray.address) == local_ray
    assert ray.cluster_resources()["CPU"] == 2


def test_another_address_is_refused_while_connected(local_ray: Cluster) -> None:
    with pytest.raises(ClusterFailed, match=r"already connected to Ray at .*; disconnect before"):
        connect("127.0.0.1:1234")


def test_the_right_token_joins_a_guarded_head(head: str) -> None:
    out, lines, _ = in_a_process(head, RAY_AUTH_TOKEN=TOKEN)
    assert out == "" and lines == ["1 cpu, 0 gpus on 1 node, local=False"]
    out, lines, _ = in_a_process(RAY_ADDRESS=head, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    assert out == "" and lines == ["1 cpu, 0 gpus on 1 node, local=False"]


def test_a_wrong_token_is_one_clear_line(head: str) -> None:
    _, lines, seconds = in_a_process(head, RAY_AUTH_TOKEN="b" * 64)
    assert lines == [
        f"ClusterFailed: cannot join Ray at {head}: the cluster refuses the token given by "
        "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    ]
    assert seconds < 15


def test_a_missing_token_is_one_clear_line(head: str) -> None:
    _, lines, seconds = in_a_process(head)
    assert lines == [
        f"ClusterFailed: cannot join Ray at {head}: the cluster asks for a token; "
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    ]
    assert seconds < 15


def test_an_address_where_nothing_listens_is_one_line_and_soon() -> None:
    address = f"127.0.0.1:{free_port()}"
    _, lines, seconds = in_a_process(address)
    assert lines == [
        f"ClusterFailed: cannot join Ray at {address}: connection refused; is the head running?"
    ]
    assert seconds < 15


def test_a_listener_that_never_answers_is_one_line_and_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        _, lines, seconds = in_a_process(address)
    assert len(lines) == 1 and lines[0].startswith(f"ClusterFailed: cannot join Ray at {address}")
    assert seconds < 15


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("no-port", "not of the form host:port"),
        ("host:port", "not of the form host:port"),
        ("1.2.3.4:99999", "not of the form host:port"),
        ("ray://1.2.3.4:10001", "use `dpray submit`"),
        ("http://1.2.3.4:8265", "use `dpray submit`"),
        ("no.such.host.invalid:6379", "host name no.such.host.invalid is not known"),
    ],
)
def test_a_bad_address_is_refused_in_one_line(address: str, says: str) -> None:
    with pytest.raises(ClusterFailed, match=says) as caught:
        probe.canonical(address)
    assert address in str(caught.value) and "\n" not in str(caught.value)


def test_a_cluster_of_another_version_is_refused_with_both_versions(
    local_ray: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe.check(local_ray.address)
    monkeypatch.setattr(ray, "__version__", "2.59.0")
    with pytest.raises(ClusterFailed, match=r"it runs Ray 2\.60\.0 and .*here are Ray 2\.59\.0"):
        probe.check(local_ray.address)


def test_more_workers_than_fit_are_refused_with_both_numbers(local_ray: Cluster) -> None:
    local_ray.require(workers=2, cpus_per_worker=1)
    with pytest.raises(ClusterFailed) as caught:
        local_ray.require(workers=3, cpus_per_worker=1, gpus_per_worker=1)
    assert str(caught.value) == (
        "asked for 3 workers of 1 cpu and 1 gpu each; the cluster has 2 cpus, 0 gpus on 1 node"
    )


def test_waiting_for_workers_says_so_and_ends(local_ray: Cluster) -> None:
    said: list[str] = []
    with pytest.raises(ClusterFailed, match=r"after \d+ seconds the cluster still has 2 cpus"):
        local_ray.require(workers=3, wait=True, timeout=0.5, poll=0.2, say=said.append)
    assert len(said) == 1 and said[0].endswith("waiting for more nodes")


def test_a_worker_must_fit_on_one_node() -> None:
    two = Resources((Node(4, 1, 0), Node(4, 1, 0)), 0)
    assert two.slots(cpus=1, gpus=2) == 0
    assert two.slots(cpus=3, gpus=0) == 2
    assert two.slots(cpus=1 / 3, gpus=0) == 24
    assert str(two) == "8 cpus, 2 gpus on 2 nodes (at most 4 cpus, 1 gpu on one)"


def test_threads_follow_whole_cpus() -> None:
    assert [threads_per_worker(cpus) for cpus in (0.25, 1, 1.5, 4)] == [1, 1, 1, 4]
    assert worker_environment(2)["OMP_NUM_THREADS"] == "2"
