"""The shim helps where torchvision stops in its import, and does nothing where it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def python(code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )


def test_torchvision_loads_through_the_shim_where_a_plain_import_fails() -> None:
    plain = python("import torchvision")
    if plain.returncode == 0:
        pytest.skip("torchvision loads by itself on this machine")
    assert "operator torchvision::nms does not exist" in plain.stderr
    done = python(
        "from dpray.torchvision_shim import import_torchvision as load\n"
        "first = load()\n"
        "assert load() is first\n"
        "import torchvision\n"
        "assert torchvision is first\n"
        "print(first.datasets.MNIST.__name__)"
    )
    assert (done.stdout, done.returncode) == ("MNIST\n", 0), done.stderr


def test_nothing_is_declared_where_torchvision_loads(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("made_up = True\n")
    done = python(
        "import torch\n"
        "from dpray import torchvision_shim as shim\n"
        "assert shim.import_torchvision().made_up\n"
        "assert not shim._declared\n"
        "print(hasattr(torch.ops.torchvision, 'nms'))",
        tmp_path,
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_another_failure_of_the_import_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('out of luck')\n")
    done = python(
        "from dpray import torchvision_shim as shim\n"
        "try:\n"
        "    shim.import_torchvision()\n"
        "except RuntimeError as error:\n"
        "    print(error, shim._declared)",
        tmp_path,
    )
    assert done.stdout == "out of luck []\n", done.stderr
