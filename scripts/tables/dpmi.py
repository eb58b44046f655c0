"""Model inversion in six combinations, at honest budgets and at the noise levels of the source.

The source trains on even digits, beside odd ones that are public, and reports FID and Inception
Score at epsilon 12.7 to 368. Here stand its combinations at epsilon 10, 3 and 1, what it varied
(activation, clip norm, public model), its own noise levels with their true epsilon, and AuGM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dpray import methods
from dpray.data.words import DatasetWord
from dpray.methods.dpmi import Dpmi
from tables.dpmi_costs import METHOD
from tables.dpmi_figures import FIGURES
from tables.inversions import inversions_of
from tables.rows import BUDGET, DOMAIN_FID, HEADLINE, LR, MLP, Column, PublishedFigure, Row, Table

COMBOS = ("wgan-gan", "wgan-vae", "ae-enc-gan", "ae-enc-vae", "ae-grad-gan", "ae-grad-vae")
BEST = "ae-grad-vae"  # the only one that the source found to work
COLLAPSED, LOST, VARIED = "collapsed", "does not converge", "varied"
LEAST_VARIED = 1.5  # domain score: below it all images are about one class
_EPSILONS = (10.0, 3.0, 1.0)
_CLIP_NORMS = (0.01, 0.05, 0.1, 0.25, 0.5)
_OTHER_PUBLIC = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "digits": "fashion-mnist"}
_EVEN = (0, 2, 4, 6, 8)


class _AtNoise(NamedTuple):
    """A row of the source, the best of its runs by FID: Inception's FID and score."""

    noise: float
    steps: int
    clip_norm: float
    activation: str
    lr: float
    claimed: float  # epsilon, at delta 1e-6; at 48,000 steps extrapolated
    fid: float
    score: float


_AT_NOISE = (
    _AtNoise(0.6, 24_000, 0.10, "tanh", 0.02, 12.7, 147.5, 1.70),
    _AtNoise(0.6, 48_000, 0.25, "leaky-relu", 0.01, 20.8, 152.6, 2.13),
    _AtNoise(0.5, 24_000, 0.05, "leaky-relu", 0.02, 25.2, 147.6, 1.92),
    _AtNoise(0.5, 48_000, 0.05, "leaky-relu", 0.01, 41.7, 146.4, 2.01),
    _AtNoise(0.4, 24_000, 0.25, "leaky-relu", 0.01, 63.1, 147.9, 1.99),
    _AtNoise(0.4, 48_000, 0.10, "leaky-relu", 0.01, 107.2, 139.3, 1.98),
    _AtNoise(0.3, 24_000, 0.50, "leaky-relu", 0.01, 207.7, 144.2, 1.95),
    _AtNoise(0.3, 48_000, 0.10, "leaky-relu", 0.01, 367.7, 124.6, 1.58),
)
# FID of its GANs, all of them with a score of 1.0.
_COLLAPSED_FID = {"wgan-gan": 211.5, "ae-enc-gan": 314.1, "ae-grad-gan": 339.7}


def outcome(run: Mapping[str, Any]) -> str:
    """Of one kept run. A run that fails to converge is a result, and is told as one."""
    if "diverged" in run or "domain_is" in run.get("not_numbers", ()):
        return LOST
    score = run["metrics"].get("domain_is")
    if score is None:
        return "-"
    return COLLAPSED if score < LEAST_VARIED else VARIED


def _row(dataset: str, combo: str, epsilon: float, words: str = "", **others: Any) -> Row:
    """`words` says what is special about it; `others` are fields of the row."""
    series = f"{combo}, {words}" if words else combo
    settings = {"combo": combo, "classes": "conditional", **others.pop("settings", {})}
    fields = {"dataset": dataset, "group": BUDGET, **others}
    return Row(
        label=f"{series}, epsilon {epsilon:g}",
        series=series,
        method=METHOD,
        epsilon=epsilon,
        settings=settings,
        **fields,
    )


def _budget_rows(dataset: str) -> list[Row]:
    """The settings of `BEST` are also those that the sweeps of activation and clip norm need."""
    rows = []
    for combo in COMBOS:
        for epsilon in _EPSILONS:
            also: tuple[str, ...] = ("activation",) if combo == BEST else ()
            also += ("clip",) if combo == BEST and epsilon in (10.0, 1.0) else ()
            fid = _COLLAPSED_FID.get(combo) if dataset == "mnist" and epsilon == 10 else None
            figure = PublishedFigure(None, others=f"FID {fid}, IS 1.0, collapsed") if fid else None
            rows.append(_row(dataset, combo, epsilon, also=also, published=figure))
    return rows


def _class_rows(dataset: str) -> list[Row]:
    words = {"single": "no labels", "per-class": "one learner a class"}
    return [
        _row(dataset, combo, 10.0, text, group="classes", settings={"classes": classes})
        for combo in (BEST, "ae-enc-gan")
        for classes, text in words.items()
    ]


def _noise_row(dataset: str, at: _AtNoise) -> Row:
    figure = PublishedFigure(
        None, epsilon=at.claimed, others=f"FID {at.fid:.1f}, IS {at.score:.2f}"
    )
    return Row(
        label=f"{BEST}, noise {at.noise:g}, {at.steps:,} steps",
        series=f"{BEST}, batches of 64, {at.steps:,} steps",
        method=METHOD,
        dataset=dataset,
        noise_multiplier=at.noise,
        settings={
            "combo": BEST,
            "classes": "single",
            "batch_size": 64,
            "steps": at.steps,
            "clip_norm": at.clip_norm,
            "activation": at.activation,
            "lr": at.lr,
        },
        published=figure if dataset == "mnist" else None,
        group="noise",
    )


def _combos_at_noise(dataset: str) -> list[Row]:
    """All combinations at noise levels of the source, with batches and steps as they are here."""
    return [
        Row(
            label=f"{combo}, noise {noise:g}",
            series=f"{combo}, fixed noise",
            method=METHOD,
            dataset=dataset,
            noise_multiplier=noise,
            settings={"combo": combo, "classes": "conditional"},
            group="noise",
        )
        for combo in COMBOS
        for noise in sorted({at.noise for at in _AT_NOISE}, reverse=True)
    ]


def _sweep_rows(dataset: str) -> list[Row]:
    """What differs from the defaults, which the rows at budgets stand for: nothing runs twice."""
    activations = [name for name in ("tanh", "leaky-relu") if name != Dpmi.activation]
    clip_norms = [value for value in _CLIP_NORMS if value != Dpmi.clip_norm]
    return [
        *(
            _row(dataset, BEST, epsilon, name, group="activation", settings={"activation": name})
            for name in activations
            for epsilon in _EPSILONS
        ),
        *(
            _row(
                dataset,
                BEST,
                epsilon,
                f"clip norm {value:g}",
                group="clip",
                settings={"clip_norm": value},
            )
            for epsilon in (10.0, 1.0)
            for value in clip_norms
        ),
    ]


def _public_rows(dataset: str) -> list[Row]:
    conv, clipped = {"public_network": "conv"}, {"public_loss": "wgan"}
    other = _OTHER_PUBLIC[dataset]
    private = str(DatasetWord(dataset, _EVEN, "rest"))
    return [
        _row(dataset, BEST, 10.0, "public conv", group="public", settings=conv),
        _row(dataset, "wgan-vae", 10.0, "public conv", group="public", settings=conv),
        _row(dataset, "wgan-vae", 10.0, "public weight clipping", group="public", settings=clipped),
        _row(private, BEST, 10.0, f"public {other}", group="public", public=other),
    ]


def _training_row(dataset: str) -> Row:
    return _row(dataset, BEST, 10.0, "with snapshots", group="training", settings={"snapshots": 8})


def _augm_rows(dataset: str) -> list[Row]:
    if "augm" not in methods.table():
        return []
    return [
        Row(
            label=f"augm, epsilon {epsilon:g}",
            series="augm",
            method="augm",
            dataset=str(DatasetWord(dataset, _EVEN)),  # the same private records as the others
            epsilon=epsilon,
            group="augm",
        )
        for epsilon in (10.0, 1.0)
    ]


def _rows(dataset: str) -> list[Row]:
    return [
        *_budget_rows(dataset),
        *_class_rows(dataset),
        *(_noise_row(dataset, at) for at in _AT_NOISE),
        *_combos_at_noise(dataset),
        *_sweep_rows(dataset),
        *_public_rows(dataset),
        _training_row(dataset),
        *_augm_rows(dataset),
    ]


TABLE = Table(
    name="dpmi",
    title="Model inversion with an autoencoder or a GAN (csc2412_project)",
    rows=_rows,
    notes=(
        "Classes at even places are private, those at odd places public, and a third of all "
        "records is set aside to label images with. A row is named by its public model, how "
        "latents are found, and the private learner; public models are trained once for all rows, "
        "and their time is not in the core-minutes.",
        "Published: FID and Inception Score of 2,048 images, by a network trained on photographs "
        "and against the private records; the best of many runs, and no accuracy. They do not "
        "compare with domain FID and domain IS here, by a classifier of the public test set, "
        "where 5 is as varied as real images are.",
        "Rows with a noise level and a number of steps take noise, batches of 64, steps, clip "
        "norm, activation and learning rate of the source. Its epsilons are at delta 1e-6, and "
        "those of 48,000 steps are extrapolated. Above epsilon 20 a run is not fit for release. "
        "Its GANs were trained at noise 0 to 0.1, and its tanh models drawn from with another "
        "activation.",
        f"Outcome: {COLLAPSED} where domain IS is below {LEAST_VARIED:g}; {LOST} where weights or "
        f"scores were not numbers in the end; else {VARIED}.",
        "AuGM passes public images of the private classes, a third of the records, through a "
        "private autoencoder: its labels are theirs.",
    ),
    datasets=("mnist", "fashion-mnist", "digits"),
    columns=(
        Column("CNN (test accuracy), %", HEADLINE.metric),
        LR,
        MLP,
        DOMAIN_FID,
        Column("domain IS (of 5)", "domain_is", scale=1.0),
        Column("FID", "fid", scale=1.0, digits=1, only_if_measured=True),
        Column("IS", "inception_score", scale=1.0, only_if_measured=True),
    ),
    published="published FID and IS (Inception)",
    outcome=outcome,
    figures=FIGURES,
    besides=inversions_of,
)
