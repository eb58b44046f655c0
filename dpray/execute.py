"""`execute(spec)`: one run from a specification to a release and its privacy card.

The main path, start to finish: load, open the ledger, let the method pay and train, evaluate,
write the card, destroy the key. Every way to start a run (in this process, in Ray Train
workers, as a trial, as a job) ends up here. Tracking is the caller's: nothing is logged here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dpray import methods
from dpray.checkpoints import Checkpoints
from dpray.contract import Method, Release, Run, SharesRecords, load_release
from dpray.data.datasets import load
from dpray.data.public import with_public
from dpray.data.records import Dataset, TrainingData
from dpray.data.shards import shard
from dpray.errors import BadInput, CannotResume
from dpray.evaluation.in_run import evaluate
from dpray.evaluation.looks import Looks, Watch, refuse_what_diverged
from dpray.evaluation.metrics import Metric, Source
from dpray.evaluation.suite import Suite, check_suite
from dpray.memory import reuse_freed_blocks
from dpray.pool import Pool, SerialPool
from dpray.privacy.accounting import Adjacency
from dpray.privacy.card import Card, make_card
from dpray.privacy.ledger import Ledger, alone
from dpray.privacy.noise import RunKey
from dpray.progress import Progress, silent
from dpray.runs import RunFolder, make_folder, new_run_id, open_folder
from dpray.spec import RunSpec, check_settings
from dpray.world import SOLO, World, current_world


@dataclass(frozen=True)
class Result:
    """What a run leaves behind. All of it is public."""

    run_id: str
    spec: RunSpec
    release: Release
    metrics: tuple[Metric, ...]
    card: Card
    folder: RunFolder

    def metric(self, name: str) -> float:
        return next(metric.value for metric in self.metrics if metric.name == name)


def check(spec: RunSpec) -> Method:
    """The method of a specification, or the error a user should see before anything starts."""
    kind = methods.find(spec.method)
    method: Method = kind(**check_settings(spec.settings, kind))
    if method.private and spec.epsilon is None and spec.noise_multiplier is None:
        raise BadInput(f"{spec.method} needs a budget: give --epsilon, or --noise-multiplier")
    if not method.private and (spec.epsilon is not None or spec.noise_multiplier is not None):
        raise BadInput(
            f"{spec.method} adds no noise, so its epsilon is infinite: leave out --epsilon and "
            "--noise-multiplier, or choose a private method"
        )
    if spec.public is not None and not _reads_public_data(method):
        raise BadInput(f"{spec.method} reads no public data: leave out --public")
    return method


def load_for(spec: RunSpec, method: Method, say: Callable[[str], None]) -> Dataset:
    """The data of a run: its records and, where the method reads some, the public data."""
    if not _reads_public_data(method):
        return load(spec.dataset, say=say)
    if spec.public is None:
        raise BadInput(
            f"{spec.method} reads public data beside the private ones: give --public, a class "
            "list such as 1,3,5 or a dataset such as fashion-mnist"
        )
    return with_public(load(spec.dataset, say=say), spec.dataset, spec.public, say)


def _reads_public_data(method: Method) -> bool:
    return getattr(method, "public_data", None) is not None


def execute(
    spec: RunSpec,
    *,
    run_id: str | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda text: None,
    test_key: int | None = None,
    runs: Path | None = None,
    suite: Suite | None = None,
    looks: Looks | None = None,
) -> Result:
    """Runs `spec`, or takes the run `run_id` up again where it stopped.

    The run's folder is made in `runs`, by default where all runs are. `suite` replaces what a run
    usually measures of synthetic images. `looks` are taken on the way, and its last one is told
    when the run is finished. A run that goes on must be given the same of both.

    In a process group every rank calls this. Rank 0 alone touches the run's folder, but for what a
    method keeps of a rank's own records in the private part of it.
    """
    reuse_freed_blocks()
    pool = pool or SerialPool(progress)
    started = _cpu_seconds(pool)
    method = check(spec)
    world = current_world()
    if looks is not None:
        refuse_looks(method, world)
    dataset = load_for(spec, method, say)
    method.check(dataset.train)
    _refuse_what_cannot_be_paid(spec, dataset)
    _refuse_a_private_test(method, dataset)
    if suite is not None:
        check_suite(suite, dataset.train)
    warn_of_delta(spec, dataset, say)
    for note in (*dataset.notes, *_declared_public(dataset)):
        say(f"note: {note}")
    run_id = world.from_first(lambda: run_id or new_run_id(spec))
    folder = world.from_first(
        lambda: open_folder(run_id, runs) if resume else make_folder(run_id, spec, runs)
    )
    with ExitStack() as held:
        earlier = world.from_first(folder.core_seconds)
        if world.is_first:
            held.callback(lambda: folder.keep_core_seconds(earlier + _cpu_seconds(pool) - started))
        # Rank 0 keeps others out of the run; that it could not is heard on every rank.
        world.from_first(lambda: held.enter_context(folder.held(say)))
        if world.from_first(lambda: resume and folder.is_finished):
            if world.is_first:
                folder.close()  # the stop may have come between the result and this
            return _told(read_result(folder), looks)
        # Stopped before its ledger was there: nothing was charged and nothing was read.
        resume = world.from_first(lambda: resume and folder.has_ledger())
        key, ledger = world.from_first(
            lambda: _open_ledger(
                folder, spec, dataset, _scored_by(suite, looks), resume=resume, test_key=test_key
            )
        )
        if not world.is_first:
            ledger.path = None
        ledger.wait_for_all = world.barrier
        run = Run(
            run_id=run_id,
            ledger=ledger,
            key=key,
            seed=spec.seed,
            world=world,
            pool=pool,
            device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
            workdir=folder.private,
            checkpoints=Checkpoints(folder.checkpoints, world=world, say=say),
            progress=progress if world.is_first else silent,
            noise_multiplier=spec.noise_multiplier,
            looks=None if looks is None else Watch(looks, dataset, suite),
        )
        torch.manual_seed(spec.seed)
        release = method.fit(share_of(method, dataset.train, world), run)
        refuse_what_diverged(release)
        cpu_seconds = earlier + _sum(world, _cpu_seconds(pool) - started)
        ledger.wait_for_all = alone  # what is left is rank 0's: the others only hear of it
        # It must not ask the others for anything: they wait for its outcome.
        checkpoints = Checkpoints(folder.checkpoints, world=SOLO, say=say)
        alone_run = replace(run, world=SOLO, checkpoints=checkpoints)
        last = looks.count if looks is not None else 1
        metrics, card = world.from_first(
            lambda: _judge(release, dataset, alone_run, spec, suite, last, cpu_seconds, say)
        )
        result = Result(run_id, spec, release, metrics, card, folder)
        if world.is_first:
            write_result(result)
        world.barrier()
        return _told(result, looks)


def refuse_looks(method: Method, world: World = SOLO) -> None:
    """Said before anything is charged, of a run that cannot be scored on its way."""
    if not getattr(method, "can_be_looked_at", False):
        able = [n for n, kind in methods.table().items() if hasattr(kind, "can_be_looked_at")]
        settings = " with these settings" if method.name in able else ""
        raise BadInput(
            f"{method.name}{settings} has nothing to score before its end; choose from: "
            f"{', '.join(sorted(able))}"
        )
    if world.size > 1:
        raise BadInput(f"a run of {world.size} workers cannot be scored on its way: use one")


def _told(result: Result, looks: Looks | None) -> Result:
    """Of a finished run the last look is told; those before it were, when they were taken."""
    if looks is not None:
        looks.report(looks.count, result.metric("test_accuracy"))
    return result


def share_of(method: Method, data: TrainingData, world: World) -> TrainingData:
    """The records of this rank: as the method shares them out, else blocks of rows in turn."""
    if isinstance(method, SharesRecords):
        return method.share(data, world.rank, world.size)
    return shard(data, world.rank, world.size)


def _refuse_what_cannot_be_paid(spec: RunSpec, dataset: Dataset) -> None:
    """Said before anything is charged: training would leave nothing for the hold-out."""
    private_hold_out = not dataset.test_is_public
    if spec.adjacency is Adjacency.REPLACE and spec.epsilon is not None and private_hold_out:
        raise BadInput(
            f"{dataset.train.name} has no test part of its own: with replace-one neighbours a "
            "record may move to the hold-out, so both share one budget; give test_images and "
            "test_labels, or use add-or-remove-one"
        )


def _refuse_a_private_test(method: Method, dataset: Dataset) -> None:
    if getattr(method, "needs_public_test", False) and not dataset.test_is_public:
        raise BadInput(
            f"{method.name} is measured again and again and so needs a public test set, which "
            f"{dataset.train.name} has not: give test_images and test_labels"
        )


def _declared_public(dataset: Dataset) -> list[str]:
    public = dataset.train.public
    return [] if public is None else [f"{name}: {value}" for name, value in public.facts.items()]


def _judge(
    release: Release,
    dataset: Dataset,
    run: Run,
    spec: RunSpec,
    suite: Suite | None,
    last: int,
    cpu_seconds: float,
    say: Callable[[str], None],
) -> tuple[tuple[Metric, ...], Card]:
    """Metrics and then the card, which also states what the metrics cost."""
    metrics = [
        *evaluate(release, dataset, run, say, suite=suite, look=(last, last)),
        Metric("core_seconds", cpu_seconds, Source.COST),
    ]
    if math.isfinite(run.ledger.epsilon):
        metrics.append(Metric("epsilon", run.ledger.epsilon, Source.LEDGER))
    return tuple(metrics), _card(spec, dataset, run)


def _cpu_seconds(pool: Pool) -> float:
    """Processor time so far, of this process and of the jobs it sent elsewhere."""
    return time.process_time() + pool.cpu_seconds


def _sum(world: World, seconds: float) -> float:
    return float(world.sum(torch.tensor([seconds], dtype=torch.float64)))


def warn_of_delta(spec: RunSpec, dataset: Dataset, say: Callable[[str], None]) -> None:
    records = dataset.train.num_records
    if spec.delta > 1 / records:
        say(
            f"warning: delta {spec.delta:g} is above 1/N = {1 / records:.3g} ({records} records): "
            "such a guarantee allows publishing somebody outright; choose a smaller --delta"
        )


def _open_ledger(
    folder: RunFolder,
    spec: RunSpec,
    dataset: Dataset,
    scored: str,
    *,
    resume: bool,
    test_key: int | None,
) -> tuple[RunKey, Ledger]:
    """The key and the ledger of a new run, or of one that stopped, bound to data and settings."""
    if resume:
        key = RunKey.read(folder.key)
        return key, Ledger.open(folder.ledger, subject=_subject(key, spec, dataset, scored))
    key = RunKey.fresh() if test_key is None else RunKey.insecure(test_key)
    key.write(folder.key)
    ledger = Ledger.create(
        folder.ledger,
        spec.budget,
        subject=_subject(key, spec, dataset, scored),
        adjacency=spec.adjacency,
    )
    return key, ledger


def _scored_by(suite: Suite | None, looks: Looks | None) -> str:
    """All on which it depends what is paid of a private hold-out; nothing where it is as usual."""
    chosen = "" if suite is None else f"/suite {json.dumps(asdict(suite), sort_keys=True)}"
    return chosen if looks is None else f"{chosen}/looks {list(looks.shares)}"


def _subject(key: RunKey, spec: RunSpec, dataset: Dataset, scored: str) -> dict[str, str]:
    """Keyed digests: they bind the ledger to its data without saying anything about them."""
    settings = json.dumps(spec.to_json(), sort_keys=True) + scored
    contents = dataset.train.fingerprint
    if dataset.train.public is not None:  # a run that goes on must find these unchanged as well
        contents += f"/public {dataset.train.public.fingerprint}"
    return {
        "dataset": key.commitment(contents),
        "settings": hashlib.sha256(settings.encode()).hexdigest(),
    }


def _card(spec: RunSpec, dataset: Dataset, run: Run) -> Card:
    notes = {f"note {i}": note for i, note in enumerate(dataset.notes, 1)}
    test = "public" if dataset.test_is_public else "private: its accuracy is a paid, noisy count"
    return make_card(
        run_id=run.run_id,
        method=spec.method,
        dataset=dataset.train.name,
        ledger=run.ledger,
        facts=run.facts,
        public={
            **dataset.train.public_facts,
            **run.facts.get("declared", {}),
            "test set": test,
            "number of test records": len(dataset.test),
            **notes,
        },
        num_records=dataset.train.num_records,
        for_tests=run.key.for_tests,
    )


def write_result(result: Result) -> None:
    """Writes the public side; `result.json` comes last and says the run is finished."""
    folder = result.folder
    # Made on the private side and moved out whole: what is public is never half written.
    result.release.save(folder.private / "release")
    shutil.rmtree(folder.release, ignore_errors=True)
    os.replace(folder.private / "release", folder.release)
    result.card.write(folder.path)
    metrics = [[m.name, m.value, m.source.value] for m in result.metrics]
    folder.write_json("result.json", {"run_id": result.run_id, "metrics": metrics})
    folder.close()


def read_result(folder: RunFolder) -> Result:
    """A finished run, read back from its folder."""
    if not folder.is_finished:
        raise CannotResume(f"run {folder.run_id} is not finished: dpray resume {folder.run_id}")
    metrics: list[list[Any]] = folder.read_json("result.json")["metrics"]
    return Result(
        folder.run_id,
        folder.read_spec(),
        load_release(folder.release),
        tuple(Metric(name, value, Source(source)) for name, value, source in metrics),
        Card.read(folder.path / "card.json"),
        folder,
    )
