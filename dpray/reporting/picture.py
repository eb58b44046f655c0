"""One picture of a finished run: what it gets right and wrong, and where epsilon went.

Drawn from public things alone: the public test set (never a private hold-out), the release
and the ledger.
"""

from __future__ import annotations

import numpy as np
import torch

from dpray.contract import Classifier
from dpray.data.datasets import load
from dpray.data.records import Dataset
from dpray.execute import Result
from dpray.privacy.accounting import cost_of
from dpray.privacy.ledger import ledger_from_json
from dpray.privacy.queries import PoissonGradients

_INK, _ACCENT, _WRONG = "#22313f", "#2a7f9e", "#c0392b"


def draw_run(result: Result) -> None:
    """Writes `picture.png` into the run's folder."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    dataset = load(result.spec.dataset, say=lambda text: None)
    figure = plt.figure(figsize=(12, 4.6), layout="constrained")
    figure.suptitle(_title(result), color=_INK, fontsize=12, fontweight="bold", x=0.01, ha="left")
    samples, confusion, budget = np.asarray(figure.subfigures(1, 3, width_ratios=(1.15, 1, 1)))
    if isinstance(result.release, Classifier) and dataset.test_is_public:
        _draw_samples(samples, result.release, dataset)
        _draw_confusion(confusion.subplots(), result.release, dataset)
    else:
        for part in (samples, confusion):
            part.text(0.5, 0.5, "the test set is private:\nnothing of it is drawn", ha="center")
    _draw_budget(budget.subplots(), result)
    figure.savefig(result.folder.picture, dpi=110)
    plt.close(figure)


def _title(result: Result) -> str:
    card = result.card
    cost = "no privacy"
    if card.epsilon is not None:
        cost = f"epsilon {card.epsilon:.3g}, delta {card.delta:g}"
    accuracy = result.metric("test_accuracy")
    return f"{result.spec.method} on {card.dataset}: {100 * accuracy:.2f} % at {cost}"


def _draw_samples(figure, release: Classifier, dataset: Dataset) -> None:  # type: ignore[no-untyped-def]
    """The first test images, then the first mistakes."""
    test = dataset.test
    predicted = release.predict(test.pixels)
    right = torch.nonzero(predicted == test.labels).flatten()[:15]
    wrong = torch.nonzero(predicted != test.labels).flatten()[:10]
    axes = figure.subplots(5, 5)
    for axis in axes.flat:
        axis.axis("off")
    for axis, row in zip(axes.flat, [*right.tolist(), *wrong.tolist()], strict=False):
        image = test.pixels[row].permute(1, 2, 0).squeeze(-1)
        axis.imshow(image, cmap="gray_r" if image.ndim == 2 else None, vmin=0, vmax=1)
        said, true = int(predicted[row]), int(test.labels[row])
        names = dataset.train.class_names
        label = names[said] if said == true else f"{names[said]}, is {names[true]}"
        axis.set_title(label, fontsize=7, pad=2, color=_INK if said == true else _WRONG)
    figure.suptitle("public test images, the last two rows mistaken", fontsize=9, color=_INK)


def _draw_confusion(axis, release: Classifier, dataset: Dataset) -> None:  # type: ignore[no-untyped-def]
    size = dataset.train.num_classes
    pairs = dataset.test.labels * size + release.predict(dataset.test.pixels)
    counts = torch.bincount(pairs, minlength=size * size).reshape(size, size).numpy()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axis.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1)
    axis.set_title("public test set: true class down, said across", fontsize=9, color=_INK)
    if size <= 12:
        for row in range(size):
            for column in range(size):
                if counts[row, column]:
                    shade = "white" if shares[row, column] > 0.4 else _INK
                    text = str(counts[row, column])
                    axis.text(column, row, text, ha="center", va="center", fontsize=6, color=shade)
        names = [name[:9] for name in dataset.train.class_names]
        axis.set_xticks(range(size), names, rotation=90, fontsize=7)
        axis.set_yticks(range(size), names, fontsize=7)


def _draw_budget(axis, result: Result) -> None:  # type: ignore[no-untyped-def]
    """Epsilon over the steps, as the accountant sees it; charged whole before the first."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("where the budget went", fontsize=9, color=_INK)
    card = result.card
    if card.epsilon is None or not card.steps or not card.noise_multiplier:
        text = "epsilon is infinite:\nno noise was added" if card.epsilon is None else "one release"
        axis.text(0.5, 0.5, text, ha="center", transform=axis.transAxes, color=_INK)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    steps = sorted({max(1, round(card.steps * share)) for share in np.linspace(0.02, 1, 12)})
    ledger = ledger_from_json(dict(card.ledger))
    curve = []
    for count in steps:
        query = PoissonGradients(
            sample_rate=card.sample_rate or 1.0,
            steps=count,
            clip_norm=1.0,
            noise_multiplier=card.noise_multiplier,
            expected_batch_size=1.0,
        )
        curve.append(cost_of([query.event], card.delta, ledger.adjacency, coarse=True).epsilon)
    axis.plot(steps, curve, color=_ACCENT, linewidth=2)
    axis.fill_between(steps, curve, color=_ACCENT, alpha=0.12)
    axis.axhline(card.epsilon, color=_INK, linewidth=1, linestyle=":")
    axis.annotate(
        f"charged before the first step: {card.epsilon:.3g}",
        (0, card.epsilon),
        xytext=(2, 3),
        textcoords="offset points",
        fontsize=8,
        color=_INK,
    )
    axis.set_xlim(0, card.steps)
    axis.set_ylim(0, card.epsilon * 1.15)
    axis.set_xlabel("step", fontsize=8)
    axis.set_ylabel("epsilon", fontsize=8)
    axis.tick_params(labelsize=7)
