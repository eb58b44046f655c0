"""The cross-architecture table: other networks on the images that were matched to one of them.

A set is learnt with the gradients of ConvNet; how well the others learn from it is measured on
the release of a row's first seed, or of as many as are asked for. The number of epochs is whatever
was kept, and is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpray.errors import unknown
from tables.kept import Place
from tables.rows import PUBLISHED_EPOCHS, Row
from tables.summary import Spread, lined
from tables.trained import Training, kept_trainings

NETWORKS = 3  # as published
_SHOWN = {
    "cnn": "CNN",
    "convnet": "ConvNet",
    "lenet": "LeNet",
    "alexnet": "AlexNet",
    "vgg11": "VGG11",
    "resnet18": "ResNet18",
    "mlp-psg": "MLP",
}


def trainings(
    rows: Sequence[Row],
    folder: Path,
    *,
    only: Sequence[str] = (),
    networks: int = NETWORKS,
    epochs: int | None = None,
    releases: int = 1,
) -> list[Training]:
    """All that the table wants of `rows`, kept or not: every network's first seed comes first.

    `epochs` takes the place of the number that each row has; `releases` says of how many seeds of
    a row the releases are looked at.
    """
    for name in only:
        if name not in _SHOWN:
            raise unknown("architecture", name, _SHOWN)
    return [
        Training(Place(row, seed, folder), name, network, epochs or row.epochs)
        for network in range(networks)
        for release in range(releases)
        for row in rows
        for seed in row.seeds[release : release + 1]
        for name in row.architectures
        if not only or name in only
    ]


def markdown(rows: Sequence[Row], folder: Path) -> str:
    """One line a row and, beneath it, what was published; nothing where no network is there."""
    crossed = [row for row in rows if row.architectures]
    names = list(dict.fromkeys(name for row in crossed for name in row.architectures))
    lines, any_kept = [], False
    for row in crossed:
        kept = [
            {**value, "seed": seed}
            for seed in row.seeds
            for value in kept_trainings(Place(row, seed, folder))
            if value["snapshot"] is None
        ]
        any_kept = any_kept or bool(kept)
        lines.append([row.label, *(_cell(kept, name) for name in names)])
        if any(row.architectures.values()):
            lines.append(["published", *(_published(row.architectures.get(n)) for n in names)])
    if not any_kept:
        return ""
    text = [
        "",
        "## Other architectures",
        "",
        *lined(["row", *(_SHOWN[name] for name in names)], lines),
        "",
        "Test accuracy in percent of networks trained on the images of the first seed: mean and "
        f"standard deviation over {NETWORKS} networks of {PUBLISHED_EPOCHS:,} epochs, as "
        "published, where nothing else is said. Of the images of several seeds it is mean and "
        "standard deviation over the seeds.",
    ]
    return "\n".join(text) + "\n"


def _cell(kept: Sequence[dict[str, Any]], name: str) -> str:
    """Of the networks that were trained for longest."""
    own = [value for value in kept if value["classifier"] == name]
    if not own:
        return "-"
    epochs = max(value["epochs"] for value in own)
    by_seed: dict[int, list[float]] = {}
    for value in own:
        if value["epochs"] == epochs:
            by_seed.setdefault(value["seed"], []).append(value["accuracy"])
    accuracies, besides = next(iter(by_seed.values())), []
    networks = sorted({len(own) for own in by_seed.values()})
    if len(by_seed) > 1:
        accuracies = [statistics.fmean(own) for own in by_seed.values()]
        besides.append(f"{len(by_seed)} seeds")
    if networks != [NETWORKS]:
        besides.append(f"{' or '.join(map(str, networks))} network{'s' * (networks != [1])}")
    if epochs != PUBLISHED_EPOCHS:
        besides.append(f"{epochs:,} epochs")
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    text = Spread(statistics.fmean(accuracies), deviation).text(100)
    return f"{text} ({', '.join(besides)})" if besides else text


def _published(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.1f}"
