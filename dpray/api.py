"""The Python interface: `dpray.run("dp-sgd", data="mnist", epsilon=3)`.

The same path as the command line: check everything that can be wrong, run, draw, record.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpray import methods
from dpray.data.datasets import refuse_unknown
from dpray.data.public import choose_words
from dpray.errors import BadInput, DprayError
from dpray.execute import Result, check, execute
from dpray.privacy.ledger import Ledger, ledger_from_json
from dpray.progress import Progress, silent
from dpray.reporting.picture import draw_run
from dpray.runs import new_run_id
from dpray.spec import RunSpec, dataset_word, with_preset

Say = Callable[[str], None]


def _say_nothing(text: str) -> None:
    pass


@dataclass(frozen=True)
class Outcome:
    """One or several finished runs of one specification, and where they are registered."""

    results: tuple[Result, ...]
    models: tuple[str | None, ...]  # registry URIs; None where recording was switched off

    @property
    def result(self) -> Result:
        return self.results[0]

    def metrics(self) -> dict[str, float]:
        """Means over the runs and, where there are several, standard deviations."""
        values: dict[str, list[float]] = {}
        for result in self.results:
            for metric in result.metrics:
                values.setdefault(metric.name, []).append(metric.value)
        means = {name: statistics.fmean(v) for name, v in values.items()}
        if len(self.results) == 1:
            return means
        # A deviation is now one between runs: those within a run would have the same names.
        between = {n: v for n, v in values.items() if not n.endswith("_std") and len(v) > 1}
        spread = {f"{name}_std": statistics.stdev(v) for name, v in between.items()}
        return {n: m for n, m in means.items() if not n.endswith("_std")} | spread

    def epsilon_of_all(self) -> float:
        """What it costs to release every one of the runs, not just one of them."""
        ledgers = [result.card.ledger for result in self.results]
        return total_epsilon([dict(ledger) for ledger in ledgers])


def total_epsilon(ledgers: list[dict[str, Any]]) -> float:
    """Epsilon of all these ledgers together, on the same data."""
    read = [ledger_from_json(ledger) for ledger in ledgers]
    entries = [entry for ledger in read for entry in ledger.entries]
    return Ledger(read[0].budget, read[0].adjacency, entries).epsilon


def run(
    method: str,
    *,
    data: str,
    public: str | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    runs: int = 1,
    insist: bool = False,
    track: bool = True,
    progress: Progress = silent,
) -> Outcome:
    """Trains `method` on `data` (a dataset's name, an .npz file or a folder of class folders).

    Behind it may stand classes and a part, as in mnist:0,2,4@rest. `public` is what everybody may
    see, for a method that reads such data: classes such as 1,3,5, or another dataset.
    `preset` names settings of the method (`dpray methods NAME` lists them); `settings` win.
    Gives back the finished run: `outcome.result.release.predict(images)`,
    `outcome.metrics()`, `outcome.result.card.text()`, and `outcome.models` in the registry.
    """
    spec = RunSpec(
        method=method,
        dataset=str(data),
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        seed=seed,
        settings=with_preset(
            settings or {}, methods.find(method), preset, torch.cuda.is_available()
        ),
        insist=insist,
        public=None if public is None else str(public),
    )
    return run_spec(spec, runs=runs, track=track, progress=progress)


def with_public_words(spec: RunSpec) -> RunSpec:
    """`spec` with its private and its public data written out, for a method that reads both."""
    how = getattr(methods.find(spec.method), "public_data", None)
    if how is None:
        return spec
    public = None if spec.public is None else dataset_word(spec.public)
    dataset, public = choose_words(spec.dataset, public, how)
    return replace(spec, dataset=dataset, public=public)


def run_spec(
    spec: RunSpec,
    *,
    runs: int = 1,
    run_id: str | None = None,
    track: bool = True,
    progress: Progress = silent,
    say: Say = _say_nothing,
    start: Callable[..., Result] = execute,
) -> Outcome:
    """Runs `spec` with seeds `seed`, `seed + 1`, ... and records every run.

    `start` is how one run is started: `execute` in this process, or on Ray Train workers.
    """
    from dpray import tracking

    if not isinstance(runs, int) or runs < 1:
        raise BadInput(f"{runs!r} runs are out of range: it must be a number, at least 1")
    spec = with_public_words(replace(spec, dataset=dataset_word(spec.dataset)))
    refuse_unknown(spec.dataset)
    check(spec)
    if track:
        tracking.check_reachable()  # before anything is trained or charged, not after
    results: list[Result] = []
    uris: list[str | None] = []
    for number in range(runs):
        seeded = replace(spec, seed=spec.seed + number)
        this_id = run_id or new_run_id(seeded)
        try:
            result = start(seeded, run_id=this_id, progress=progress, say=say)
        except KeyboardInterrupt:
            say(f"warning: interrupted; no budget is lost, go on with: dpray resume {this_id}")
            raise
        results.append(result)
        uris.append(finish(result, track=track, say=say))
    return Outcome(tuple(results), tuple(uris))


def finish(result: Result, *, track: bool = True, say: Say = _say_nothing) -> str | None:
    """Draws a finished run and records it. The run's folder is whole whatever happens here."""
    from dpray import tracking

    draw_run(result)
    if not track:
        return None
    try:
        return tracking.record(result)
    except DprayError:
        say(f"warning: the run is kept; record it later with: dpray resume {result.run_id}")
        raise
