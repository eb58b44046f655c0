"""Accuracies that others published, with protocol and source. None of them was measured here.

Protocols differ (classifier, epochs, what was tuned on the test set) and move such figures by
more than ten points, and not every stated epsilon withstands recomputing: see the protocols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSource:
    name: str
    protocol: str
    drawn: bool  # in the plot, or in the table only


@dataclass(frozen=True)
class Published:
    method: str
    dataset: str
    epsilon: float | None  # None: the source states none
    accuracy: float  # a share, of the test set
    classifier: str
    source: PublishedSource


PRIVATE_SET = PublishedSource(
    "Private Set Generation (DingfanChen/Private-Set, NeurIPS 2022), slides",
    "A ConvNet trained on the synthetic set (PSG: 20 images a class) and tested on real images, "
    "delta 1e-5.",
    drawn=True,
)
DP2_VAE = PublishedSource(
    "DP2-VAE (arXiv 2208.03409, version 2), table 1",
    "Classifiers trained on synthetic images and tested on real ones, mean of 5 runs, delta "
    "1e-5. Most other methods are quoted there. Its own epsilon rests on an analysis that "
    "cannot be checked from the text.",
    drawn=True,
)
PRIVACY_PROJECT = PublishedSource(
    "Private classification and VAE-based synthesis (OmriBenbenisty/PrivacyProject), table 1",
    "A CNN, one run, last epoch. The source gives a noise multiplier and no epsilon; from its "
    "settings we estimate one above 1000. Its synthetic images also use class statistics of the "
    "private records without noise, so for them no epsilon holds.",
    drawn=True,
)
SOK = PublishedSource(
    "SoK-PPDS benchmark, re-measured",
    "LeNet trained on synthetic images, 50 epochs; the best of four learning rates is reported.",
    drawn=False,
)
DP_IMAGE_BENCH = PublishedSource(
    "DPImageBench, re-measured",
    "A CNN trained on synthetic images; its protocol is not that of the other sources.",
    drawn=False,
)
OWN_CLAIM = PublishedSource(
    "The method's own authors",
    "A CNN trained on synthetic images and tested on real ones; settings differ by author.",
    drawn=False,
)

# Method: accuracy in percent at epsilon 1 and at epsilon 10; None where none is given.
_Pair = tuple[float | None, float | None]
_PRIVATE_SET: dict[str, dict[str, _Pair]] = {
    "mnist": {
        "DP-CGAN": (None, 52.5),
        "G-PATE": (58.8, 80.9),
        "DataLens": (71.2, 80.7),
        "GS-WGAN": (None, 84.9),
        "DP-MERF": (72.7, 85.7),
        "DP-Sinkhorn": (None, 83.2),
        "PSG": (80.9, 95.6),
    },
    "fashion-mnist": {
        "DP-CGAN": (None, 50.2),
        "G-PATE": (58.1, 69.3),
        "DataLens": (64.8, 70.6),
        "GS-WGAN": (None, 63.1),
        "DP-MERF": (61.2, 72.4),
        "DP-Sinkhorn": (None, 71.1),
        "PSG": (70.2, 77.7),
    },
}
_SOK: dict[str, dict[str, _Pair]] = {
    "mnist": {
        "DP-GAN": (58.6, 74.7),
        "DP-CGAN": (25.3, 64.8),
        "G-PATE": (None, 42.0),
        "DataLens": (None, 53.9),
        "GS-WGAN": (13.2, 78.3),
        "DP-MERF": (83.9, 83.2),
    },
    "fashion-mnist": {
        "DP-GAN": (54.1, 59.5),
        "DP-CGAN": (18.0, 49.0),
        "GS-WGAN": (12.5, 64.7),
        "DP-MERF": (72.4, 71.7),
    },
}
_DP_IMAGE_BENCH: dict[str, dict[str, _Pair]] = {
    "mnist": {
        "DP-GAN": (92.4, 92.7),
        "GS-WGAN": (72.4, 75.3),
        "DP-MERF": (80.3, 81.3),
        "DPDM": (89.2, 97.7),
    },
    "fashion-mnist": {
        "DP-GAN": (71.8, 70.3),
        "GS-WGAN": (52.7, 56.7),
        "DP-MERF": (62.2, 62.2),
        "DPDM": (76.4, 85.6),
    },
}
_OWN_CLAIM: dict[str, dict[str, _Pair]] = {
    "mnist": {"DP-GAN (Bie et al.)": (None, 94.4), "DPDM": (None, 98.1)},
}
# MNIST at epsilon 10. Method: accuracy in percent of LR, MLP and CNN.
_DP2_VAE: dict[str, tuple[float | None, float | None, float]] = {
    "DP-CGAN": (60.0, 60.0, 63.0),
    "DP-MERF": (79.1, 81.1, 82.0),
    "G-PATE": (None, None, 80.9),
    "DataLens": (None, None, 80.7),
    "GS-WGAN": (79.0, 79.0, 80.0),
    "DP-Sinkhorn": (79.5, 80.2, 83.2),
    "DP-Sinkhorn, m=3": (79.1, 79.2, 79.1),
    "DP2-VAE": (78.4, 77.8, 81.2),
}
# MNIST, no epsilon. Noise multiplier: accuracy in percent of classifier and of synthetic set.
_PRIVACY_PROJECT = {0.03: (97.5, 80.0), 0.06: (96.7, 79.5), 0.1: (95.0, 76.0)}


def _pairs(
    table: Mapping[str, Mapping[str, _Pair]], classifier: str, source: PublishedSource
) -> Iterator[Published]:
    for dataset, rows in table.items():
        for method, values in rows.items():
            for epsilon, percent in zip((1.0, 10.0), values, strict=True):
                if percent is not None:
                    yield Published(method, dataset, epsilon, percent / 100, classifier, source)


def _dp2_vae() -> Iterator[Published]:
    for method, values in _DP2_VAE.items():
        for classifier, percent in zip(("LR", "MLP", "CNN"), values, strict=True):
            if percent is not None:
                yield Published(method, "mnist", 10.0, percent / 100, classifier, DP2_VAE)


def _privacy_project() -> Iterator[Published]:
    for noise, percents in _PRIVACY_PROJECT.items():
        for kind, percent in zip(("classifier", "VAE images"), percents, strict=True):
            method = f"{kind}, noise {noise:g}"
            yield Published(method, "mnist", None, percent / 100, "CNN", PRIVACY_PROJECT)


PUBLISHED: tuple[Published, ...] = (
    *_pairs(_PRIVATE_SET, "ConvNet", PRIVATE_SET),
    *_dp2_vae(),
    *_privacy_project(),
    *_pairs(_SOK, "LeNet", SOK),
    *_pairs(_DP_IMAGE_BENCH, "CNN", DP_IMAGE_BENCH),
    *_pairs(_OWN_CLAIM, "CNN", OWN_CLAIM),
)


def published_on(dataset: str) -> list[Published]:
    """Figures on a built-in dataset, by its name. A user's own file has none."""
    return [figure for figure in PUBLISHED if figure.dataset == dataset]


def numbered_sources(dataset: str) -> dict[PublishedSource, int]:
    """The sources of a dataset's figures and the numbers by which plot and table refer to them."""
    sources = dict.fromkeys(figure.source for figure in published_on(dataset))
    return {source: number for number, source in enumerate(sources, 1)}


def to_draw(dataset: str) -> list[Published]:
    """One convolutional figure a method and source: what the plot has room for."""
    kept: dict[tuple[str, float | None, float], Published] = {}
    for figure in published_on(dataset):
        if figure.source.drawn and figure.classifier not in ("LR", "MLP"):
            kept.setdefault((figure.method, figure.epsilon, figure.accuracy), figure)
    return list(kept.values())
