"""What a method is given (`Run`), what it is (`Method`) and what it gives back (`Release`).

A `Release` is the only thing that is tracked, registered or shown. It is made of public parts:
weights that came out of noisy queries, and a recipe (JSON) from which the module is rebuilt.
No code is ever pickled: a release on disk is `release.json` and `weights.safetensors`.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpray import models
from dpray.checkpoints import Checkpoint, Checkpoints
from dpray.data.records import PublicData, TrainingData
from dpray.errors import BadInput, CannotResume
from dpray.models.batches import in_batches
from dpray.pool import Pool
from dpray.privacy.ledger import Ledger
from dpray.privacy.ledger_part import LedgerPart
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import Q
from dpray.progress import Progress
from dpray.storage import clear_errors, write_whole
from dpray.world import World


@dataclass
class Run:
    """All a method gets from outside: where it runs, what it may spend, where noise comes from."""

    run_id: str
    ledger: Ledger
    key: RunKey  # secret: batch choice and noise. Never logged, destroyed when the run ends
    seed: int  # public: initial weights, synthetic draws
    world: World
    pool: Pool
    device: torch.device
    workdir: Path  # private, owner-only: checkpoints, caches, everything that is not a release
    checkpoints: Checkpoints
    progress: Progress
    # Noise the user fixed instead of an epsilon; the card then says what it really costs.
    noise_multiplier: float | None = None
    # Public facts of the run worth showing on the card: noise multiplier, steps, sampling rate, and
    # under `declared` what else it takes as public.
    facts: dict[str, Any] = field(default_factory=dict)
    # Who scores the training on its way, where somebody does: `evaluation.looks.Watch`.
    looks: Onlooker | None = None

    def generator(self, purpose: str = "") -> torch.Generator:
        """A public generator: the same seed and purpose give the same draws everywhere."""
        offset = sum(ord(c) * 257**i for i, c in enumerate(purpose)) % (1 << 31)
        return torch.Generator().manual_seed((self.seed << 31) + offset)

    def at_noise(self, make_query: Callable[[float], Q]) -> Q:
        """A query at the noise that the user fixed, else at the least that the budget affords."""
        if self.noise_multiplier is not None:
            return make_query(self.noise_multiplier)
        return self.ledger.calibrate(make_query)

    def once(self, name: str, release: Callable[[], Tensor]) -> Tensor:
        """A noisy release, kept: after a crash it is read back and not computed again.

        The same sum taken by other arithmetic (another number of threads or workers) differs in
        its last bits, and with the same noise that difference would be of the data alone.
        """
        kept = self.checkpoints.latest(name, ledger_heads=self.ledger.heads)
        if kept is not None:
            return kept.tensors["release"]
        if self.checkpoints.has(name):
            raise CannotResume(
                f"the release {name!r} was made already and its file is damaged: made again it "
                "would be another one under the same noise; start a new run"
            )
        noisy = release()
        self.checkpoints.save(name, Checkpoint(1, {"release": noisy}, self.ledger.head))
        return noisy

    def look(self, done: int, total: int, release: Callable[[], Release]) -> None:
        """Called after step `done` of `total`, before its checkpoint: here a training is scored.

        `release` gives what would be released by now; most often nobody asks for it. Nothing that
        it or a look does may change the steps that follow. May raise, to stop the run.
        """
        if self.looks is not None:
            self.looks(self, done, total, release)

    def part_of(self, name: str, part: str) -> Run:
        """This run as its task `name` sees it, which reads the records of `part` and no others.

        Guarantee: what the task pays is charged to `part`. Its key and the names of its queries
        are its own, so no noise of one task is that of another; so are its public draws, its
        checkpoints and its facts. The caller gives the task no records but those of `part`.
        Nobody looks at it on its way: of the whole release it makes a part.
        """
        progress = self.progress
        return replace(
            self,
            ledger=LedgerPart(self.ledger, name, part),
            key=self.key.derive(name),
            seed=zlib.crc32(f"{self.seed}/{name}".encode()) >> 1,
            workdir=self.workdir / name,
            checkpoints=self.checkpoints.within(name),
            progress=lambda label, total: progress(f"{name}: {label}", total),
            facts={},
            looks=None,
        )


class Onlooker(Protocol):
    """Hears of every step of a training, and may score what would be released by then."""

    def __call__(self, run: Run, done: int, total: int, release: Callable[[], Release]) -> None: ...


class Method(Protocol):
    """A frozen dataclass: its fields are the hyperparameters, `fit` is the algorithm.

    What it may have besides: `share`, to share its records out itself (`SharesRecords`);
    `go_on`, to take up new classes (`GoesOn`);
    `presets: ClassVar[Mapping[str, Mapping[str, Any]]]`, settings under a name;
    `gpu_preset: ClassVar[str]`, the one that is taken where there is a GPU and none was named;
    `needs_public_test: ClassVar[bool]`, where it cannot be measured on a private hold-out;
    `can_be_looked_at: ClassVar[bool]`, or a property where settings decide it, where it calls
    `run.look` after its steps;
    `fans_out: ClassVar[bool]`, where most of its work is jobs of the pool; and
    `public_data: ClassVar[Literal["classes", "labelling"]]`, where it reads `data.public`: what is
    public unless the user says otherwise, every other class or a third of the records.
    """

    name: ClassVar[str]
    private: ClassVar[bool]

    def check(self, data: TrainingData) -> None:
        """Refuses settings that cannot work on such data, before anything is charged or read."""
        ...

    def fit(self, data: TrainingData, run: Run) -> Release: ...


@runtime_checkable
class SharesRecords(Protocol):
    """A method that says itself which records a rank gets, for example whole subsets of them."""

    def share(self, data: TrainingData, rank: int, size: int) -> TrainingData:
        """The share of worker `rank` of `size`: every record goes to one of them.

        `num_records` and the fingerprint stay those of the whole. Called before anything is
        charged, so it may move records and must not say anything about them. What is kept by
        block (`private_features`, `blocks`) is for shares of consecutive rows, not for these.
        """
        ...


@runtime_checkable
class GoesOn(Protocol):
    """A method that can take up classes it has not seen, from what earlier tasks released."""

    def check_go_on(self) -> None:
        """Refuses settings with which it cannot, before anything is charged or read."""
        ...

    def go_on(
        self, earlier: Release | None, classes: tuple[int, ...], data: TrainingData, run: Run
    ) -> Release:
        """Learns `classes`. `data` lists all classes there will ever be, under their numbers.

        It holds the records of `classes` alone, and `run` charges them alone. `earlier` is what
        the tasks before this one released, None for the first; `earlier.tasks` are their classes.
        """
        ...


def public_of(data: TrainingData, method: str) -> PublicData:
    """The public data beside the private ones, for a method that cannot do without."""
    if data.public is None:
        raise BadInput(f"{method} needs public data beside {data.name}: name them with --public")
    return data.public


def refuse_one_class(data: TrainingData) -> None:
    """What a synthesizer makes is measured by a classifier trained on it."""
    if data.num_classes < 2:
        raise BadInput(
            f"{data.name} has one class, {data.class_names[0]!r}: synthetic data are measured by "
            "a classifier trained on them, which needs two"
        )


@dataclass
class Release(ABC):
    """Public weights and the recipe to rebuild what holds them."""

    model: str  # a name in the table of dpray.models
    arguments: Mapping[str, Any]  # what that model is built with; JSON
    module: nn.Module
    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    # The classes that each task brought, where they were learnt one task after another.
    tasks: tuple[tuple[int, ...], ...] = ()

    kind: ClassVar[str]

    def recipe(self) -> dict[str, Any]:
        """All but the weights, as JSON: `rebuilt` makes the release again."""
        recipe = {
            "kind": self.kind,
            "model": self.model,
            "arguments": dict(self.arguments),
            "class_names": list(self.class_names),
            "shape": list(self.shape),
        }
        return {**recipe, "tasks": list(map(list, self.tasks))} if self.tasks else recipe

    def save(self, folder: Path) -> None:
        with clear_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        recipe = json.dumps(self.recipe(), indent=2) + "\n"
        write_whole(folder / "release.json", recipe.encode())
        weights = {k: v.detach().cpu().contiguous() for k, v in self.module.state_dict().items()}
        write_whole(folder / "weights.safetensors", save(weights))


@dataclass
class Classifier(Release):
    """Images in [0, 1] to class probabilities."""

    kind: ClassVar[str] = "classifier"

    def probabilities(self, pixels: Tensor, batch_size: int = 250) -> Tensor:
        self.module.eval()
        if len(pixels) == 0:
            return torch.zeros(0, len(self.class_names))
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        return in_batches(lambda part: self.module(part).softmax(1), pixels, batch_size, device)

    def predict(self, pixels: Tensor) -> Tensor:
        return self.probabilities(pixels).argmax(1)


@dataclass
class Synthesizer(Release):
    """Labels to images in [0, 1]."""

    kind: ClassVar[str] = "synthesizer"

    @torch.no_grad()
    def sample(self, labels: Tensor, rng: torch.Generator, batch_size: int = 1000) -> Tensor:
        self.module.eval()
        parts = [self.module(part, rng).clamp(0, 1) for part in labels.split(batch_size)]
        return torch.cat(parts) if parts else torch.zeros(0, *self.shape)


RELEASES: dict[str, type[Release]] = {c.kind: c for c in (Classifier, Synthesizer)}


def load_release(folder: Path) -> Release:
    """Rebuilds a saved release: the module from its recipe, then the weights, strictly."""
    recipe = json.loads((folder / "release.json").read_text())
    if recipe["kind"] not in RELEASES:
        raise BadInput(f"{folder} holds a {recipe['kind']!r}, not one of {sorted(RELEASES)}")
    return rebuilt(recipe, load_file(folder / "weights.safetensors"))


def rebuilt(recipe: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Release:
    """What `Release.recipe` came from."""
    module = models.build(recipe["model"], **recipe["arguments"])
    module.load_state_dict(weights)
    return RELEASES[recipe["kind"]](
        model=recipe["model"],
        arguments=recipe["arguments"],
        module=module.eval(),
        class_names=tuple(recipe["class_names"]),
        shape=tuple(recipe["shape"]),
        tasks=tuple(map(tuple, recipe.get("tasks", ()))),
    )
