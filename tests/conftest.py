"""Fixtures every test may use: a home of its own, tiny data, and a run to hand to a method."""

import itertools
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from dpray.checkpoints import Checkpoints
from dpray.contract import Run
from dpray.data.records import Images, PublicData, TrainingData
from dpray.pool import SerialPool
from dpray.privacy.accounting import Budget
from dpray.privacy.ledger import Ledger
from dpray.privacy.noise import RunKey
from dpray.progress import silent
from dpray.world import SOLO

# A shell that starts the suite in the background has it ignore Ctrl-C, and every process below
# it too: interrupts, and Ray's cancelling, which is one, would then do nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The suite shares its cores with Ray's processes: spinning threads would slow all of them.
torch.set_num_threads(1)


_ON_TRAIN_OR_TUNE = ("test_train.py", "test_tune.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """One folder, or one file beside this one, goes to one process: they share dear fixtures.

    Ray's tests are two such groups: what runs on Ray Train and Tune, and what lies below them. Each
    starts a Ray of its own and kills nothing but its own workers. They come first, one in each
    process: they wait a lot, and what is left at the end should be small pieces.
    """
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).parts[0]
        if place == "distributed" and item.path.name in _ON_TRAIN_OR_TUNE:
            place = "train and tune"
        item.add_marker(pytest.mark.xdist_group(place))
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] != "distributed")


def pytest_collection_finish(session):
    """xdist 3.8 writes groups into node ids, which pytest 9.2 no longer lets it: say so."""
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and not all("@" in item.nodeid for item in session.items):
        pytest.exit("groups of tests got lost: this pytest and this xdist do not fit", returncode=3)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """Nothing a test does reaches the user's own runs, models or caches of private features."""
    monkeypatch.setenv("DPRAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    """An SQLite file with MLflow's tables and nothing in them: making them takes seconds."""
    from dpray.tracking.store import connect

    home = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            patch.delenv(name)
        patch.setenv("DPRAY_HOME", str(home))
        connect()
    return home / "mlflow" / "mlflow.db"


@pytest.fixture
def own_store(tables, own_home):
    """For tests that record runs and are not about how a store is made."""
    file = Path(os.environ["DPRAY_HOME"]) / "mlflow" / "mlflow.db"
    file.parent.mkdir(parents=True)
    shutil.copy(tables, file)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """For tests that train public models, which are kept beside fetched datasets."""
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny_data() -> TrainingData:
    """Sixty 16x16 images of three classes that a straight line can tell apart.

    Beside them are forty public images, and thirty that show the private classes.
    """
    rng = torch.Generator().manual_seed(0)
    private = striped_images(60, rng)
    beside = Images(
        torch.rand(40, 1, 16, 16, generator=rng), torch.arange(40) % 3, torch.arange(100, 140)
    )
    labelling = striped_images(30, rng)
    return TrainingData(
        name="tiny",
        private=private,
        num_records=60,
        class_names=("a", "b", "c"),
        fingerprint="tiny",
        public=PublicData(
            name="tiny public",
            images=beside,
            class_names=("a", "b", "c"),
            fingerprint="tiny public",
            labelling=labelling,
        ),
    )


def striped_images(count: int, rng: torch.Generator) -> Images:
    """Images of three classes in turn, each with a bright stripe of its own."""
    labels = torch.arange(count) % 3
    pixels = torch.rand(count, 1, 16, 16, generator=rng) * 0.3
    for label in range(3):
        pixels[labels == label, :, 5 * label : 5 * label + 5] += 0.6
    return Images(pixels, labels, torch.arange(count))


@pytest.fixture
def make_run(tmp_path):
    numbers = itertools.count()

    def make(
        epsilon: float = 1.0,
        *,
        key: int = 0,
        noise_multiplier: float | None = None,
        folder: str | None = None,
    ) -> Run:
        """A run in a folder of its own; name the folder to go on where another one stopped."""
        private = tmp_path / (folder or f"private-{next(numbers)}")
        return Run(
            run_id="test",
            ledger=Ledger(Budget(epsilon if noise_multiplier is None else math.inf, 1e-5)),
            key=RunKey.insecure(key),
            seed=0,
            world=SOLO,
            pool=SerialPool(),
            device=torch.device("cpu"),
            workdir=private,
            checkpoints=Checkpoints(private / "checkpoints"),
            progress=silent,
            noise_multiplier=noise_multiplier,
        )

    return make
