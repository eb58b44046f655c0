"""Tables of Private Set Generation: a few images a class at a budget, and what they are good for.

Images a class and budgets as published; a generator as prior; six architectures that were not
matched; and tasks of two classes one after another, beside two learners that have no such set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpray.evaluation.suite import SUITES
from dpray.reporting.published import published_of
from tables.rows import BUDGET, DOMAIN_FID, HEADLINE, LR, MLP, Column, PublishedFigure, Row, Table

ARCHITECTURES = ("convnet", "lenet", "alexnet", "vgg11", "resnet18", "mlp-psg")
# At epsilon 10, in the order of ARCHITECTURES, but the first: of that is the published figure.
_PUBLISHED_ARCHITECTURES: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "mnist": {
        10: (91.3, 90.3, 93.6, 94.3, 86.1),
        20: (93.0, 92.3, 94.5, 94.1, 87.1),
    },
    "fashion-mnist": {
        10: (68.0, 66.2, 74.7, 72.1, 62.8),
        20: (68.0, 59.1, 76.8, 70.8, 62.2),
    },
}
_LEARNERS: Mapping[str, Mapping[str, Any]] = {
    "psg": {},
    "dp-sgd": {"learner_settings": "model=cnn features=pixels epochs=5"},
    "dp-merf": {},
}


def _set_row(dataset: str, group: str, spc: int, epsilon: float) -> Row:
    crossed = epsilon == 10 and spc in (10, 20)
    published = _figure(dataset, "PSG" if spc == 20 else f"PSG, {spc} a class", epsilon)
    return Row(
        label=f"spc {spc}, epsilon {epsilon:g}",
        series=f"spc {spc}",
        method="psg",
        dataset=dataset,
        epsilon=epsilon,
        settings={"spc": spc},
        published=published,
        group=group,
        architectures=_architectures(dataset, spc, published) if crossed else {},
    )


def _prior_row(dataset: str, spc: int) -> Row:
    return Row(
        label=f"spc {spc}, generator prior, epsilon 10",
        series=f"spc {spc}, generator prior",
        method="psg",
        dataset=dataset,
        epsilon=10.0,
        settings={"spc": spc, "prior": "generator"},
        published=_figure(dataset, f"PSG, generator prior, {spc} a class", 10.0),
        group="prior",
    )


def _continual_row(dataset: str, learner: str) -> Row:
    return Row(
        label=f"five tasks, {learner}, epsilon 10",
        series=f"five tasks, {learner}",
        method="continual",
        dataset=dataset,
        epsilon=10.0,
        settings={"learner": learner, **_LEARNERS[learner]},
        group="continual",
    )


def _figure(dataset: str, name: str, epsilon: float) -> PublishedFigure | None:
    for figure in published_of(dataset, "psg", epsilon):
        if figure.method == name:
            return PublishedFigure(figure.accuracy, epsilon=epsilon, holds=True)
    return None


def _architectures(dataset: str, spc: int, matched: PublishedFigure | None) -> dict[str, Any]:
    percents = _PUBLISHED_ARCHITECTURES.get(dataset, {}).get(spc)
    if percents is None or matched is None:
        return dict.fromkeys(ARCHITECTURES)
    shares = (matched.accuracy, *(percent / 100 for percent in percents))
    return dict(zip(ARCHITECTURES, shares, strict=True))


def _rows(dataset: str) -> list[Row]:
    return [
        *(_set_row(dataset, BUDGET, spc, epsilon) for spc in (20, 10) for epsilon in (10.0, 1.0)),
        *(_set_row(dataset, "sizes", spc, epsilon) for spc in (1, 50) for epsilon in (10.0, 1.0)),
        *(_prior_row(dataset, spc) for spc in (1, 10, 20)),
        *(_continual_row(dataset, learner) for learner in _LEARNERS),
    ]


TABLE = Table(
    name="psg",
    title="Private Set Generation (Chen et al. 2022)",
    rows=_rows,
    notes=(
        "spc is the number of images a class. Published: mean of 3 ConvNets of 1,000 epochs on one "
        f"set; here every run trains 3 of {SUITES['small'].epochs['convnet']} epochs on its own. "
        "Where there is one run, the deviation is that of its ConvNets.",
        "The source asks 10,000 to 500,000 noisy gradients a run on a GPU. Rows here take the "
        "settings of preset laptop: fewer of them, of larger batches, and a narrower network; the "
        "noise is calibrated to the queries that are asked.",
        "Five tasks: two classes each, one after another, epsilon 10 for each task's own records; "
        "the test accuracy is that over all classes after the last, of DP-SGD that of the private "
        "network itself, of DP-MERF that of a CNN. The source shows curves and states no figures.",
    ),
    datasets=("mnist", "fashion-mnist", "digits"),
    columns=(
        Column("ConvNet (test accuracy), %", HEADLINE.metric, within="convnet_accuracy_std"),
        LR,
        MLP,
        DOMAIN_FID,
    ),
    classifier="ConvNets",
)
