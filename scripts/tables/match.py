"""DP-Match and the moments it starts from, beside the best figures that others published.

Any number of images drawn from Gaussians (`moments`) or from a set (`drawn`), and sets of 50 and 10
images a class: moved ones, and means of what Gaussians draw. A figure beside a row is the highest
published for its kind at the same budget: of generators for what is drawn, of sets of as many
images for the others; each from the protocol of its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpray.reporting.published import published_on
from tables.rows import DOMAIN_FID, HEADLINE, LR, MLP, Column, PublishedFigure, Row, Table

_GENERATORS = ("moments", "drawn")
_HANDWRITTEN = ("mnist", "digits")  # as everybody knows of them


@dataclass(frozen=True)
class _Kind:
    method: str
    best: str  # the method with the highest published figure for what is released
    settings: Mapping[str, Any]


_KINDS = {
    "moments": _Kind("dp-moments", "FETA-Pro", {}),
    "drawn": _Kind("dp-match", "FETA-Pro", {}),
    "50 a class": _Kind("dp-match", "Dosser", {"spc": 50, "warp": 0.0}),
    "10 a class": _Kind("dp-match", "Dosser, 10 a class", {"spc": 10, "warp": 0.0}),
    "50 means a class": _Kind("dp-moments", "Dosser", {"spc": 50}),
    "10 means a class": _Kind("dp-moments", "Dosser, 10 a class", {"spc": 10}),
}
# What else is trained on a release, beside what its test accuracy is about, and for how long: an
# epoch of a ConvNet on 60,000 images takes minutes of a core.
_CONVNET, _CNN = ({"convnet": None}, 3), ({"cnn": None}, 500)


def _row(dataset: str, name: str, epsilon: float) -> Row:
    kind = _KINDS[name]
    of_ink = kind.method == "dp-moments" and dataset in _HANDWRITTEN
    architectures, epochs = _CONVNET if name in _GENERATORS else _CNN
    return Row(
        label=f"{name}, epsilon {epsilon:g}",
        series=name,
        method=kind.method,
        dataset=dataset,
        epsilon=epsilon,
        settings={**({"view": "ink"} if of_ink else {}), **kind.settings},
        published=_best(dataset, kind.best, epsilon),
        group="budget" if name in _GENERATORS else "sets",
        architectures=architectures,
        epochs=epochs,
    )


def _best(dataset: str, method: str, epsilon: float) -> PublishedFigure | None:
    for figure in published_on(dataset):
        if figure.method == method and figure.epsilon == epsilon:
            words = method.split(",")[0]
            # Nobody recomputed its epsilon here: it gets no place on an axis of epsilon.
            return PublishedFigure(figure.accuracy, epsilon=epsilon, others=words)
    return None


def _rows(dataset: str) -> list[Row]:
    return [_row(dataset, name, epsilon) for name in _KINDS for epsilon in (1.0, 10.0)]


TABLE = Table(
    name="match",
    title="DP-Match: release once, optimise for ever",
    rows=_rows,
    notes=(
        "Moments: a CNN trained on 60,000 draws of noisy Gaussians, of images seen as ink where "
        "records are handwritten (a setting). Drawn: the same of a set of 100 images a class, each "
        "bent a bit; the others: three ConvNets trained on the set itself, which is all that is "
        "released: images that were moved, or means of what is drawn of the Gaussians.",
        "How far draws are bent is asked of the records, within the budget. The other defaults are "
        "the same for all datasets and were chosen by looking at the public test sets of MNIST and "
        "Fashion-MNIST, not at private records.",
    ),
    datasets=("mnist", "fashion-mnist", "digits"),
    columns=(Column("test accuracy, %", HEADLINE.metric), LR, MLP, DOMAIN_FID),
    classifier="a CNN (sets: ConvNets)",
)
