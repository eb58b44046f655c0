"""The files in cluster/: they parse, say the versions of pyproject, and hold no secrets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from ray.autoscaler._private.util import prepare_config, validate_config

from dpray.distributed.jobs import EXCLUDES

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
FILES = sorted(path for path in CLUSTER.iterdir() if path.is_file())
MANIFESTS = {
    "kuberay-cluster.yaml": ["RayCluster"],
    "kuberay-job.yaml": ["RayJob"],
    "mlflow.yaml": ["Service", "StatefulSet", "PersistentVolumeClaim", "Deployment", "Service"],
    "shared-volume.yaml": ["PersistentVolumeClaim"],
}
# Long runs of key-like characters, and values given to words for secrets. A reference such as
# $(DB_PASSWORD), "$(openssl ...)" or secretKeyRef is what should stand there instead.
SECRET_LIKE = (
    re.compile(r"\b(?=[A-Za-z0-9+/]*\d)(?=[A-Za-z0-9+/]*[A-Za-z])[A-Za-z0-9+/]{32,}"),
    re.compile(r"(?i)(password|token|secret|api_?key)\s*[=:]\s*['\"]?(?!token\b|\$|secret|\s)\w+"),
    re.compile(r"(AKIA[0-9A-Z]{16}|-----BEGIN|gh[pousr]_\w{20})"),
    re.compile(r"://[^/\s:@$]+:[^/\s@$]+@"),
)
ALLOWED = ("secretName: dpray-ray-token",)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def ray_cluster_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = documents(name)[0]["spec"]
    return spec.get("rayClusterSpec", spec)


def pinned(package: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in project["dependencies"] if re.match(rf"{package}\b", line)]
    return str(lines[0].split("==")[1])


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def secret_like(line: str) -> bool:
    return line.strip() not in ALLOWED and any(p.search(line) for p in SECRET_LIKE)


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".yaml"], ids=lambda p: p.name)
def test_every_yaml_file_parses_and_is_expected(path: Path) -> None:
    found = documents(path.name)
    if path.name in MANIFESTS:
        assert [document["kind"] for document in found] == MANIFESTS[path.name]
        assert all(document["metadata"]["name"].startswith("dpray") for document in found)
    else:
        assert path.name in ("aws-gpu.yaml", "on-premise.yaml", "runtime_env.yaml")
        assert len(found) == 1


@pytest.mark.parametrize("name", ["aws-gpu.yaml", "on-premise.yaml"])
def test_the_cluster_launcher_accepts_the_file(name: str) -> None:
    config = prepare_config(documents(name)[0])  # what `ray up` does before it calls a cloud
    validate_config(config)
    start = " ".join(config["head_start_ray_commands"] + config["worker_start_ray_commands"])
    assert start.count("RAY_AUTH_MODE=token") == 2
    assert "--dashboard-host=127.0.0.1" in start
    assert "~/.ray/auth_token" in config["file_mounts"].values()


def test_the_cluster_launcher_would_reject_a_mistake() -> None:
    config = prepare_config(documents("aws-gpu.yaml")[0])
    with pytest.raises(Exception, match="min_wrokers"):
        validate_config({**config, "min_wrokers": 3})


def test_the_cloud_pool_grows_from_nothing() -> None:
    types = documents("aws-gpu.yaml")[0]["available_node_types"]
    assert types["gpu"]["min_workers"] == 0
    assert types["gpu"]["max_workers"] > 0
    assert types["gpu"]["resources"]["GPU"] == 1
    assert types["head"]["resources"] == {"CPU": 0}


@pytest.mark.parametrize("name", ["kuberay-cluster.yaml", "kuberay-job.yaml"])
def test_ray_on_kubernetes_asks_for_the_token_and_scales_gpu_pods(name: str) -> None:
    spec = ray_cluster_spec(name)
    assert spec["authOptions"] == {"mode": "token", "secretName": "dpray-ray-token"}
    assert spec["enableInTreeAutoscaling"] is True
    (workers,) = spec["workerGroupSpecs"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (0, 8)
    for group in (spec["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "dpray-shared"
        assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
        assert {"name": "DPRAY_HOME", "value": "/shared/dpray"} in container["env"]
    gpus = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert gpus["nvidia.com/gpu"] == "1"


def test_both_ray_manifests_describe_the_same_cluster() -> None:
    assert ray_cluster_spec("kuberay-cluster.yaml") == ray_cluster_spec("kuberay-job.yaml")


def test_a_ray_job_is_never_started_a_second_time() -> None:
    spec = documents("kuberay-job.yaml")[0]["spec"]
    assert spec["entrypoint"].startswith("dpray run ")
    assert spec["backoffLimit"] == spec["submitterConfig"]["backoffLimit"] == 0


def test_the_shared_volume_can_be_written_by_many_nodes() -> None:
    assert documents("shared-volume.yaml")[0]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_mlflow_takes_its_credentials_from_a_secret() -> None:
    for document in documents("mlflow.yaml"):
        if document["kind"] not in ("Deployment", "StatefulSet"):
            continue
        (container,) = document["spec"]["template"]["spec"]["containers"]
        for variable in container["env"]:
            if re.search("USER|PASSWORD", variable["name"]):
                assert variable["valueFrom"]["secretKeyRef"]["name"] == "dpray-mlflow-db"


def test_ray_versions_are_the_pinned_one() -> None:
    version = pinned("ray")
    for path in FILES:
        for found in re.findall(r"(?:rayproject/ray:|RAY_VERSION=)(\d[\d.]*)", path.read_text()):
            assert found == version, path.name
    for name in ("kuberay-cluster.yaml", "kuberay-job.yaml"):
        assert ray_cluster_spec(name)["rayVersion"] == version
    assert f"ARG RAY_VERSION={version}\n" in (CLUSTER / "Dockerfile").read_text()


def test_what_the_image_copies_exists_and_is_pinned() -> None:
    text = (CLUSTER / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY --chown=\S+ (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in sources.split())
    assert text.count("--constraint constraints.txt") == 2


def test_the_runtime_environment_file_agrees_with_what_submit_leaves_out() -> None:
    (runtime_env,) = documents("runtime_env.yaml")
    assert runtime_env["excludes"] == list(EXCLUDES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_file_holds_anything_like_a_secret(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if secret_like(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "    value: postgresql://mlflow:hunter2@db/mlflow",
        "password: hunter2",
        "export RAY_AUTH_TOKEN=4f7d0c9be3a14d2f8e6a5b7c9d0e1f23",
        "aws_access_key: AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_a_secret_in_a_file_would_be_noticed(line: str) -> None:
    assert secret_like(line)
