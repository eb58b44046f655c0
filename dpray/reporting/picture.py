"""One picture of a finished run: what came out, what it is worth, and where epsilon went.

A classifier is shown by what it gets right and wrong, a synthesizer by what it draws. Drawn
from public things alone: the public test set (never a private hold-out), the release and the
ledger.
"""

from __future__ import annotations

import math
from textwrap import shorten

import numpy as np
import torch
from PIL import Image

from dpray.contract import Classifier, Synthesizer
from dpray.data.datasets import load
from dpray.data.records import Dataset
from dpray.execute import Result
from dpray.privacy.accounting import cost_of
from dpray.privacy.card import Card
from dpray.privacy.ledger import Ledger, ledger_from_json
from dpray.privacy.queries import PoissonGradients
from dpray.reporting.grid import class_grid, grid, named_rows

_INK, _ACCENT, _WRONG = "#22313f", "#2a7f9e", "#c0392b"
_PER_CLASS = 10  # in samples.png
_MOST_ROWS = 10  # in a panel


def draw_run(result: Result) -> None:
    """Writes `picture.png` into the run's folder, and `samples.png` for a synthesizer."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 4.6), layout="constrained")
    figure.suptitle(_title(result), color=_INK, fontsize=12, fontweight="bold", x=0.01, ha="left")
    left, middle, right = np.asarray(figure.subfigures(1, 3, width_ratios=(1.15, 1, 1)))
    if isinstance(result.release, Synthesizer):
        rng = torch.Generator().manual_seed(result.spec.seed)
        class_grid(result.release, _PER_CLASS, rng).save(result.folder.samples)
        _draw_drawn(left.subplots(), result.release, rng)
        _draw_means(middle.subplots(), result.release, rng)
    elif isinstance(result.release, Classifier):
        dataset = load(result.spec.dataset, say=lambda text: None)
        if dataset.test_is_public:
            _draw_samples(left.subplots(), result.release, dataset)
            _draw_confusion(middle.subplots(), result.release, dataset)
        else:
            for part in (left, middle):
                part.text(0.5, 0.5, "the test set is private:\nnothing of it is drawn", ha="center")
    _draw_budget(right.subplots(), result)
    figure.savefig(result.folder.picture, dpi=110)
    plt.close(figure)


def _title(result: Result) -> str:
    card = result.card
    cost = "no privacy"
    if card.epsilon is not None:
        cost = f"epsilon {card.epsilon:.3g}, delta {card.delta:g}"
    worth = f"{100 * result.metric('test_accuracy'):.2f} %"
    noise = [m.value for m in result.metrics if m.name == "test_accuracy_noise"]
    if noise:
        worth += f" ± {100 * noise[0]:.1f} of noise"
    if isinstance(result.release, Synthesizer):
        worth += " (train on synthetic, test on real)"
    return f"{result.spec.method} on {card.dataset}: {worth} at {cost}"


def _draw_drawn(axis, release: Synthesizer, rng: torch.Generator) -> None:  # type: ignore[no-untyped-def]
    """A few images a class; of many classes only the first, so that they stay legible."""
    names = release.class_names[:_MOST_ROWS]
    labels = torch.arange(len(names)).repeat_interleave(8)
    _show(axis, named_rows(release.sample(labels, rng), names))
    every = len(release.class_names)
    some = f": the first {len(names)} of {every} classes" if len(names) < every else ""
    axis.set_title(f"drawn from the model{some}", fontsize=9, color=_INK)


def _draw_means(axis, release: Synthesizer, rng: torch.Generator) -> None:  # type: ignore[no-untyped-def]
    """The mean of many draws: what the model takes a class to be, without its variety."""
    classes = range(min(len(release.class_names), 100))
    means = [release.sample(torch.full((100,), label), rng).mean(0) for label in classes]
    _show(axis, grid(torch.stack(means), columns=math.ceil(math.sqrt(len(means)))))
    axis.set_title("mean of 100 draws of each class", fontsize=9, color=_INK)


def _show(axis, image: Image.Image) -> None:  # type: ignore[no-untyped-def]
    axis.imshow(np.asarray(image), cmap="gray", vmin=0, vmax=255)
    axis.axis("off")


def _draw_samples(axis, release: Classifier, dataset: Dataset) -> None:  # type: ignore[no-untyped-def]
    """The first test images, then the first mistakes, all on one axis: drawing many takes long."""
    test, names, side = dataset.test, dataset.train.class_names, 5
    predicted = release.predict(test.pixels)
    right = torch.nonzero(predicted == test.labels).flatten()[:15]
    wrong = torch.nonzero(predicted != test.labels).flatten()[:10]
    for place, row in enumerate([*right.tolist(), *wrong.tolist()]):
        image = test.pixels[row].permute(1, 2, 0).squeeze(-1)
        down, across = divmod(place, side)
        high, wide = (0.4 * size / max(image.shape[:2]) for size in image.shape[:2])
        middle = (across + 0.5, down + 0.6)
        extent = (middle[0] - wide, middle[0] + wide, middle[1] + high, middle[1] - high)
        axis.imshow(
            image, cmap="gray_r" if image.ndim == 2 else None, vmin=0, vmax=1, extent=extent
        )
        said, true = int(predicted[row]), int(test.labels[row])
        label = names[said] if said == true else f"{names[said]}, is {names[true]}"
        shade = _INK if said == true else _WRONG
        axis.text(across + 0.5, down + 0.17, label, fontsize=7, ha="center", color=shade)
    axis.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    axis.axis("off")
    axis.set_title("public test images, the last two rows mistaken", fontsize=9, color=_INK)


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
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("where the budget went", fontsize=9, color=_INK)
    axis.tick_params(labelsize=7)
    card = result.card
    if card.epsilon is None:
        text = "epsilon is infinite:\nno noise was added"
        axis.text(0.5, 0.5, text, ha="center", transform=axis.transAxes, color=_INK)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    ledger = ledger_from_json(dict(card.ledger))
    if len(ledger.entries) == 1 and card.noise_multiplier and (card.steps or 1) > 1:
        _draw_steps(axis, card, ledger)
    else:
        _draw_entries(axis, card, ledger)


def _draw_entries(axis, card: Card, ledger: Ledger) -> None:  # type: ignore[no-untyped-def]
    """A bar a charge: its epsilon alone. Charges compose to less than their sum."""
    entries = ledger.entries[:_MOST_ROWS]
    total = card.epsilon or 0.0
    # The coarse bound may lie above the true one; what all cost together bounds each of them.
    alone = [
        min(cost_of([entry.event], card.delta, ledger.adjacency, coarse=True).epsilon, total)
        for entry in entries
    ]
    bars = axis.barh(range(len(entries)), alone, height=0.5, color=_ACCENT)
    axis.bar_label(bars, [f"{epsilon:.3g}" for epsilon in alone], fontsize=8, padding=2)
    names = [f"{shorten(entry.name, 28, placeholder=' ..')}\n{entry.part}" for entry in entries]
    axis.set_yticks(range(len(entries)), names, fontsize=7)
    axis.set_ylim(max(len(entries), 3) - 0.5, -0.9)  # the first charge on top
    axis.axvline(total, color=_INK, linewidth=1, linestyle=":")
    what = "together" if card.search is None else "with the search that chose it"
    axis.text(total, -0.6, f"{what}: {total:.3g} ", ha="right", fontsize=8, color=_INK)
    axis.set_xlim(0, total * 1.15 or 1.0)
    left_out = len(ledger.entries) - len(entries)
    more = f" ({left_out} more not drawn)" if left_out else ""
    axis.set_xlabel(f"epsilon of each charge alone{more}", fontsize=8)


def _draw_steps(axis, card: Card, ledger: Ledger) -> None:  # type: ignore[no-untyped-def]
    """Epsilon over the steps, as the accountant sees it; charged whole before the first."""
    assert card.epsilon is not None and card.steps and card.noise_multiplier
    steps = sorted({max(1, round(card.steps * share)) for share in np.linspace(0.02, 1, 12)})
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
