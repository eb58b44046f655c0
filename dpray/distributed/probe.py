"""Whether a Ray head can be joined: asked once, answered within seconds, refused in one line.

Ray itself tries for two minutes and ends in a page of warnings, whatever the cause. The head
answers three small questions at once: is it alive, which versions does it run, which nodes has
it. They go over Ray's own channel, so its TLS and its token are used as Ray would use them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import time
from typing import Any

import grpc  # type: ignore[import-untyped]
import ray
from ray._private import services
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2
from ray.core.generated import gcs_service_pb2_grpc as calls
from ray.exceptions import AuthenticationError

from dpray.errors import ClusterFailed

_SECONDS = 5.0
messages: Any = gcs_service_pb2  # its classes are made at import, unseen by a type checker


def canonical(address: str) -> str:
    """`address` as host:port with the host's number, or one line on why it cannot be."""
    if address.startswith(("http://", "https://")):
        raise ClusterFailed(
            f"the Ray address {address} is the job server of a cluster, which takes jobs only: "
            "use `dpray submit`, or give the host:port of the head from one of its nodes"
        )
    if "://" in address:
        raise ClusterFailed(
            f"the Ray address {address} is not of the form host:port; from outside the cluster "
            "use `dpray submit`, on one of its nodes give the host:port of the head"
        )
    found = re.fullmatch(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", address)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ClusterFailed(
            f"the Ray address {address!r} is not of the form host:port, as in 10.0.0.4:6379"
        )
    host, port = found["host"].strip("[]"), int(found["port"])
    try:
        number = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ClusterFailed(
            f"cannot reach Ray at {address}: the host name {host} is not known"
        ) from error
    number = services.resolve_ip_for_localhost(number)
    return f"[{number}]:{port}" if ":" in number else f"{number}:{port}"


def check(address: str) -> None:
    """Raises `ClusterFailed` unless a driver on this machine can join the head at `address`."""
    channel = init_grpc_channel(canonical(address))
    try:
        nodes = calls.NodeInfoGcsServiceStub(channel)
        alive = nodes.CheckAlive(messages.CheckAliveRequest(), timeout=_SECONDS)
        _check_versions(address, alive.ray_version, _python_version(channel))
        _check_this_machine(address, nodes)
    except grpc.RpcError as error:
        raise ClusterFailed(f"cannot join Ray at {address}: {_reason(error)}") from error
    except AuthenticationError as error:
        raise ClusterFailed(f"cannot join Ray at {address}: {_token_advice()}") from error
    finally:
        channel.close()


def _python_version(channel: grpc.Channel) -> str:
    # Where Ray keeps what it compares itself; an empty value means it was never written.
    answer = calls.InternalKVGcsServiceStub(channel).InternalKVGet(
        messages.InternalKVGetRequest(namespace=b"cluster", key=b"CLUSTER_METADATA"),
        timeout=_SECONDS,
    )
    return str(json.loads(answer.value or b"{}").get("python_version", ""))


def _check_versions(address: str, ray_there: str, python_there: str) -> None:
    here = f"Ray {ray.__version__} and Python {platform.python_version()}"
    there = f"Ray {ray_there} and Python {python_there or 'unknown'}"
    # Ray insists on the patch level of Python as well, unless this variable relaxes it.
    parts = 2 if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" else 3
    python_here = platform.python_version_tuple()[:parts]
    same_python = not python_there or tuple(python_there.split(".")[:parts]) == python_here
    if ray_there != ray.__version__ or not same_python:
        raise ClusterFailed(
            f"cannot join Ray at {address}: it runs {there}, here are {here}; both must be equal"
        )


def _check_this_machine(address: str, nodes: calls.NodeInfoGcsServiceStub) -> None:
    deadline = time.monotonic() + _SECONDS  # a node that just started registers within this
    while True:
        answer = nodes.GetAllNodeInfo(messages.GetAllNodeInfoRequest(), timeout=_SECONDS)
        alive = {node.node_id.hex() for node in answer.node_info_list if node.state == 0}
        if alive & set(services.find_node_ids()):
            return
        if time.monotonic() > deadline:
            raise ClusterFailed(
                f"this machine is not a node of the Ray cluster at {address}: "
                "send the command there with `dpray submit`, or run it on one of the nodes"
            )
        time.sleep(0.5)


def _reason(error: grpc.RpcError) -> str:
    code, details = error.code(), " ".join((error.details() or "").split())
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return _token_advice()
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return "something else than a Ray head listens there (heads use port 6379 by default)"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {_SECONDS:.0f} seconds"
    if "refused" in details:
        return "connection refused; is the head running?"
    if code == grpc.StatusCode.UNAVAILABLE:
        return "nothing that speaks Ray answers there"
    return details[:200] or code.name


def _token_advice() -> str:
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return "the cluster refuses the token given by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    return "the cluster asks for a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
