"""A real MLflow store for each test: its tables are made once and copied, as that takes seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dpray import models
from dpray.contract import Classifier
from dpray.evaluation.metrics import Metric, Source
from dpray.execute import Result
from dpray.privacy.accounting import Budget
from dpray.privacy.card import make_card
from dpray.privacy.ledger import Ledger
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum
from dpray.runs import make_folder
from dpray.spec import RunSpec

SHAPE = (1, 4, 4)
MLFLOW_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_EXPERIMENT_NAME")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, and a working folder that MLflow must leave empty."""
    home = tmp_path / "a home"  # the space is meant: paths become URIs
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for name in MLFLOW_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DPRAY_HOME", str(home))
    yield home
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.fixture
def store(tables: Path, own_home: Path) -> str:
    file = own_home / "mlflow" / "mlflow.db"
    file.parent.mkdir(parents=True)
    shutil.copy(tables, file)
    return f"sqlite:///{file}"


@pytest.fixture
def make_result() -> Callable[..., Result]:
    return _make_result


def _make_result(
    run_id: str = "run-1",
    *,
    method: str = "dp-sgd",
    dataset: str = "mnist",
    accuracy: float = 0.5,
    source: Source = Source.PUBLIC_TEST,
    noise: float = 4.0,
    for_tests: bool = False,
) -> Result:
    """A finished run, by hand: a linear classifier, a paid ledger and a private side."""
    spec = RunSpec(method=method, dataset=dataset, noise_multiplier=noise)
    folder = make_folder(run_id, spec)
    (RunKey.insecure(1) if for_tests else RunKey.fresh()).write(folder.key)
    ledger = Ledger.create(folder.ledger, Budget(100, 1e-5), subject={}, adjacency=spec.adjacency)
    ledger.pay(GaussianSum(name="sums", noise_multiplier=noise))
    card = make_card(
        run_id=run_id,
        method=method,
        dataset=dataset,
        ledger=ledger,
        facts={"steps": 1},
        public={"image shape": list(SHAPE)},
        for_tests=for_tests,
        num_records=60_000,
    )
    metrics = (
        Metric("test_accuracy", accuracy, source),
        Metric("epsilon", ledger.epsilon, Source.LEDGER),
    )
    return Result(run_id, spec, make_release(), metrics, card, folder)


def make_release() -> Classifier:
    torch.manual_seed(0)
    arguments = {"model": "linear", "features": "pixels", "shape": list(SHAPE), "num_classes": 3}
    return Classifier(
        "image-classifier",
        arguments,
        models.build("image-classifier", **arguments),
        ("cat", "dog", "hen"),
        SHAPE,
    )
