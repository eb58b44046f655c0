"""Networks trained on what a finished row released, after its run: each kept in a file of its own.

The release is public, so this costs no budget. A file lies beside that of the row and says which
run, network, seed and number of epochs it is about, so that what is there is not trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpray.contract import Release, Synthesizer, load_release
from dpray.data.datasets import load
from dpray.data.records import Dataset
from dpray.errors import BadInput
from dpray.evaluation.downstream import downstream
from dpray.evaluation.synthetic import Synthetic, draw, num_images
from dpray.pool import SerialPool
from dpray.privacy.card import Card
from dpray.privacy.ledger import ledger_from_json
from dpray.runs import RunFolder, open_folder
from dpray.storage import write_whole
from tables.commits import this_commit
from tables.costs import epsilon_after
from tables.jobs import How
from tables.kept import Place, Say


@dataclass(frozen=True)
class Training:
    """One network on the release of a finished row, or on a snapshot of it on its way."""

    place: Place
    classifier: str
    network: int  # its seed
    epochs: int
    snapshot: int | None = None  # None: the release itself

    @property
    def name(self) -> str:
        stage = "" if self.snapshot is None else f", snapshot {self.snapshot}"
        release = f"{self.place.row.label}, seed {self.place.seed}{stage}"
        return f"{release}, {self.classifier} {self.network}"

    @property
    def finished(self) -> Path:
        stage = "release" if self.snapshot is None else f"snapshot{self.snapshot}"
        words = f"{stage}-{self.classifier}-{self.network}-{self.epochs}epochs"
        return self.place.folder / f"{self.place.stem}.{words}.json"

    def is_kept(self) -> bool:
        """Of the run that the row has now: one that ran anew released something else."""
        run = self.place.read()
        if run is None or not self.finished.exists():
            return False
        return bool(json.loads(self.finished.read_text())["run_id"] == run["run_id"])

    def do(self, how: How, say: Say) -> None:
        run = self.place.read()
        if run is None:
            raise BadInput(f"{self.place.row.label} has not run yet")
        folder = open_folder(run["run_id"])
        dataset = load(self.place.row.dataset, say=say)
        if not dataset.test_is_public:
            raise BadInput(f"the hold-out of {dataset.train.name} is private")
        images, cost = self._images(folder, dataset)
        started = time.process_time()
        score = downstream(
            images.pixels,
            images.labels,
            dataset.test,
            num_classes=dataset.train.num_classes,
            classifiers=[self.classifier],
            seeds=[self.network],
            pool=SerialPool(),
            epochs=self.epochs,
        )[0]
        value = {
            "label": self.place.row.label,
            "run_id": run["run_id"],
            "commit": this_commit(),
            "classifier": self.classifier,
            "network": self.network,
            "epochs": self.epochs,
            "snapshot": self.snapshot,
            **cost,
            "accuracy": score.raw_correct / len(dataset.test),
            "core_seconds": time.process_time() - started,
        }
        write_whole(self.finished, (json.dumps(value, indent=2) + "\n").encode())

    def _images(self, folder: RunFolder, dataset: Dataset) -> tuple[Synthetic, dict[str, Any]]:
        """What to train on, and where it is a snapshot, the queries and epsilon spent by then."""
        release = load_release(folder.release)
        if not isinstance(release, Synthesizer):
            raise BadInput(f"{self.place.row.label} released a {release.kind}, which has no images")
        if self.snapshot is None:
            return draw(release, num_images(dataset.train.num_records), self.place.seed), {}
        history, labels = release.module.get_buffer("history"), release.module.get_buffer("labels")
        queries = snapshots_of(release)[self.snapshot]
        ledger = ledger_from_json(dict(Card.read(folder.path / "card.json").ledger))
        cost = {"queries": queries, "epsilon": epsilon_after(queries, ledger)}
        return Synthetic(history[self.snapshot].clamp(0, 1), labels), cost


def kept_trainings(place: Place) -> Iterator[dict[str, Any]]:
    """All that was trained on the release of the row as it stands, for any number of epochs."""
    run = place.read()
    if run is None:
        return
    for path in sorted(place.folder.glob(f"{place.stem}.*.json")):
        value: dict[str, Any] = json.loads(path.read_text())
        if value["run_id"] == run["run_id"]:
            yield value


def snapshots_of(release: Release) -> list[int]:
    """The queries after which each snapshot was taken; none where the release keeps none."""
    steps = getattr(release.module, "history_steps", None)
    return [] if steps is None or getattr(release, "tasks", None) else steps.tolist()
