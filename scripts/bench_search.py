"""What a search is worth: the best of 32 short trials against the default settings, epsilon 1.

Trials read the other dataset, which is public here (--charge public), so the search costs nothing
and both sides of a row spend the same epsilon on the private records, once. A row is one search; a
row that is done is kept in --out and not run again, one that was cut off goes on.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from dpray.cli.output import say
from dpray.distributed.cluster import disconnect
from dpray.distributed.tune import TrialSize, run_on_ray
from dpray.execute import execute
from dpray.progress import silent, terminal
from dpray.search.folder import SearchFolder, make_search_folder, new_search_id, searches_folder
from dpray.search.space import NOISE, Space, load_space
from dpray.search.trials import SearchSpec
from dpray.spec import RunSpec
from dpray.tuning import tune, with_words

DATASETS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
# What makes a trial short. Both sides of a row have it, so that a row compares settings alone.
SHORT: dict[str, dict[str, Any]] = {
    "dp-sgd": {"epochs": 4.0},
    "dp-vae": {"epochs": 3.0},
    "dp-merf": {"steps": 250},
    "dp-moments": {"warp": 0.0},  # how far to bend is asked of every trial's records otherwise
}
SCORES = {"dp-moments": "cnn"}  # what scores a trial's images, where it is not an MLP


def space_of(method: str) -> Space:
    """The space of the method, but for the noise: epochs are fixed here, and it follows."""
    return {name: one for name, one in load_space(method).items() if name != NOISE}


def make_search(method: str, dataset: str, trials: int, sampler: Any) -> SearchSpec:
    return SearchSpec(
        method=method,
        dataset=dataset,
        charge="public",
        proxy=DATASETS[dataset],
        trials=trials,
        epsilon=1.0,
        space=space_of(method),
        settings=SHORT[method],
        sampler=sampler,
        score=SCORES.get(method, "mlp"),
    )


def row(method: str, dataset: str, words: argparse.Namespace) -> dict[str, Any]:
    kept = words.out / f"{method}-{dataset}-{words.trials}-{words.sampler}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    search = with_words(make_search(method, dataset, words.trials, words.sampler))
    progress = silent if words.quiet else terminal
    pointer = kept.with_suffix(".search")  # which search this row is, should it be cut off
    folder = SearchFolder(searches_folder() / pointer.read_text()) if pointer.exists() else None
    if folder is None:
        folder = make_search_folder(new_search_id(search), search)
        pointer.write_text(folder.search_id)
    tuned = tune(
        search,
        folder=folder,
        conduct=partial(run_on_ray, size=TrialSize(concurrent=words.concurrent)),
        track=not words.no_tracking,
        progress=progress,
        say=say,
    )
    plain = RunSpec(method=method, dataset=dataset, epsilon=1.0, settings=SHORT[method])
    usual = execute(plain, progress=progress, say=say)
    trials = tuned.outcome.trials
    found = {
        "method": method,
        "dataset": dataset,
        "trials": len(trials),
        "without a score": sum(one.score == float("-inf") for one in trials),
        "default": usual.metric("test_accuracy"),
        "best": tuned.result.metric("test_accuracy"),
        "best on the proxy": max(one.score for one in trials),
        "settings": dict(tuned.result.spec.settings),
        "epsilon": tuned.result.card.epsilon,
    }
    kept.write_text(json.dumps(found, indent=2) + "\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=SHORT, default=list(SHORT))
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--sampler", choices=("random", "tpe"), default="tpe")
    parser.add_argument("--concurrent", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    parser.add_argument("--no-tracking", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    print("method   dataset         default      best   settings")
    for method in words.methods:
        for dataset in words.datasets:
            found = row(method, dataset, words)
            settings = " ".join(
                f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                for name, value in sorted(found["settings"].items())
            )
            print(
                f"{method:<8} {dataset:<14} {100 * found['default']:7.2f} % "
                f"{100 * found['best']:7.2f} %  {settings}"
            )
    disconnect()


if __name__ == "__main__":
    main()
