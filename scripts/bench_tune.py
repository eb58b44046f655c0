"""What Ray Tune costs on top of the trials: the same draws in a bare loop, and over Ray Tune.

One run, in turns: the loop a user would write (a trial after the other in this process), Tune with
one trial at a time, and Tune with one on every core. Seconds a trial, after workers are warm. The
trials are DP-SGD on digits, short ones: the shorter a trial, the more an overhead shows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from dpray.data.datasets import load
from dpray.distributed.cluster import connect, disconnect
from dpray.distributed.tune import TrialSize, run_on_ray
from dpray.search.budgets import DataFacts
from dpray.search.conduct import run_here
from dpray.search.folder import make_search_folder
from dpray.search.handing_out import Trials, begin
from dpray.search.space import log_uniform
from dpray.search.trials import SearchSpec

WAYS = ("bare loop", "Ray Tune, one at a time", "Ray Tune, all cores")


def make_search(words: argparse.Namespace) -> SearchSpec:
    return SearchSpec(
        method="dp-sgd",
        dataset=words.dataset,
        charge="none",
        trials=words.trials,
        epsilon=3.0,
        space={"lr": log_uniform(0.5, 5.0)},
        settings={"features": "pixels", "batch_size": 300, "steps": words.steps},
    )


def timed(way: str, search: SearchSpec, facts: DataFacts, number: int) -> float:
    """Seconds a trial. All ways draw the same settings: their keys are the same test key."""
    folder = make_search_folder(f"bench-{WAYS.index(way)}-{number}", search)
    trials = Trials(folder, begin(folder, search, test_key=1), facts)
    started = time.perf_counter()
    if way == "bare loop":
        run_here(trials)
    else:
        run_on_ray(trials, TrialSize(concurrent=1 if "one" in way else None))
    return (time.perf_counter() - started) / search.trials


def measure(words: argparse.Namespace) -> dict[str, Any]:
    search = make_search(words)
    facts = DataFacts.of(load(search.words()[0], say=lambda text: None).train)
    cluster = connect("local")
    torch.set_num_threads(1)  # as a trial on Ray has
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(words.repeats + 1):
        for way in WAYS:
            seconds = timed(way, search, facts, number)
            if number:  # the first round warms what all ways use: data, calibrations, workers
                found[way].append(seconds)
    medians = {way: statistics.median(values) for way, values in found.items()}
    return {
        "trials": search.trials,
        "steps": words.steps,
        "cpus": cluster.resources().cpus,
        "seconds_a_trial": medians,
        "all": found,
        "overhead_seconds": medians[WAYS[1]] - medians[WAYS[0]],
        "speedup_on_all_cores": medians[WAYS[0]] / medians[WAYS[2]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1500, help="of a trial")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["DPRAY_HOME"] = str(Path(home) / "home")
        found = measure(words)
        disconnect()
    if words.json:
        print(json.dumps(found, indent=2))
        return
    for way, seconds in found["seconds_a_trial"].items():
        print(f"{way:<26} {seconds:7.2f} s a trial")
    print(
        f"Ray Tune adds {found['overhead_seconds']:.2f} s to a trial; on {found['cpus']:g} "
        f"cores a search ends {found['speedup_on_all_cores']:.2f} times as soon as the bare loop"
    )


if __name__ == "__main__":
    main()
