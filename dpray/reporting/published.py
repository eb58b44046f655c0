"""Accuracies that others published, with protocol and source. None of them was measured here.

Protocols differ (classifier, epochs, what was tuned on the test set) and move such figures by
more than ten points, and not every stated epsilon withstands recomputing: see the protocols.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Methods of dpray whose published counterpart has another name.
_OTHER_NAMES = {
    "classifier": "dp-sgd",
    "VAE images": "dp-vae",
    "ScatterNet": "dp-sgd",
    "DP-SGD on a CNN": "dp-sgd",
    "CNN": "sgd",
}


@dataclass(frozen=True)
class PublishedSource:
    name: str
    protocol: str
    drawn: bool  # in the plot, or in the table only


@dataclass(frozen=True)
class Published:
    method: str
    dataset: str
    epsilon: float | None  # as claimed; None: the source states none; infinite: no privacy
    accuracy: float  # a share, of the test set
    classifier: str
    source: PublishedSource
    noise_multiplier: float | None = None  # where it is stated in place of an epsilon

    @property
    def is_variant(self) -> bool:
        """Whether its name says more than the method: a setting, after a comma."""
        return "," in self.method

    @property
    def known_as(self) -> str:
        """The name that the method has in dpray, or would have."""
        name = self.method.split(",")[0].split(" (")[0]
        return _OTHER_NAMES.get(name, name.lower())


PRIVATE_SET = PublishedSource(
    "Private Set Generation (DingfanChen/Private-Set, NeurIPS 2022), slides",
    "A ConvNet trained on the synthetic set (PSG: 20 images a class, where nothing else is said) "
    "and tested on real images, delta 1e-5. Most other methods are quoted there.",
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
    drawn=True,
)
DIRECT = PublishedSource(
    "DPSUR (selective update), table 2: classifiers trained on the records themselves",
    "Mean of 5 runs, delta 1e-5; the choice of settings is not charged. DPSUR itself charges only "
    "the updates that it accepts.",
    drawn=True,
)

FETA_PRO = PublishedSource(
    "FETA-Pro (2019ChenGong/Feta-Pro), logs",
    "A diffusion model on four GPUs for about 12 hours; mean of three networks trained on 60,000 "
    "of its images, delta 1e-5. Its settings were tuned on a grid that is not charged.",
    drawn=True,
)
DOSSER = PublishedSource(
    "Dosser (ICCV 2025), project page",
    "A ConvNet trained on a set of images (50 a class, where nothing else is said), epsilon 1. "
    "Figures of NDPDC are quoted there. The choice of settings is not charged.",
    drawn=True,
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
# The same method with fewer images a class, and with a generator as prior.
_PRIVATE_SET_VARIANTS: dict[str, dict[str, _Pair]] = {
    "mnist": {
        "PSG, 1 a class": (None, 81.4),
        "PSG, 10 a class": (None, 94.9),
        "PSG, generator prior, 1 a class": (None, 88.2),
        "PSG, generator prior, 10 a class": (None, 92.2),
        "PSG, generator prior, 20 a class": (None, 90.6),
    },
    "fashion-mnist": {
        "PSG, 1 a class": (None, 66.7),
        "PSG, 10 a class": (None, 75.6),
        "PSG, generator prior, 1 a class": (None, 63.0),
        "PSG, generator prior, 10 a class": (None, 70.2),
        "PSG, generator prior, 20 a class": (None, 70.7),
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
        "DP-Sinkhorn": (61.9, 79.6),
    },
    "fashion-mnist": {
        "DP-GAN": (54.1, 59.5),
        "DP-CGAN": (18.0, 49.0),
        "GS-WGAN": (12.5, 64.7),
        "DP-MERF": (72.4, 71.7),
        "DP-Sinkhorn": (56.3, 65.4),
    },
}
_DP_IMAGE_BENCH: dict[str, dict[str, _Pair]] = {
    "mnist": {
        "DP-GAN": (92.4, 92.7),
        "GS-WGAN": (72.4, 75.3),
        "DP-MERF": (80.3, 81.3),
        "DPDM": (89.2, 97.7),
        "DP-Kernel": (94.0, 93.6),
    },
    "fashion-mnist": {
        "DP-GAN": (71.8, 70.3),
        "GS-WGAN": (52.7, 56.7),
        "DP-MERF": (62.2, 62.2),
        "DPDM": (76.4, 85.6),
        "DP-Kernel": (68.4, 70.0),
    },
}
_OWN_CLAIM: dict[str, dict[str, _Pair]] = {
    "mnist": {"DP-GAN (Bie et al.)": (None, 94.4), "DPDM": (None, 98.1)},
}
_FETA_PRO: dict[str, dict[str, _Pair]] = {
    "mnist": {"FETA-Pro": (96.76, 98.36)},
    "fashion-mnist": {"FETA-Pro": (82.23, 87.80)},
}
_DOSSER: dict[str, dict[str, _Pair]] = {
    "mnist": {
        "Dosser": (96.4, None),
        "Dosser, 10 a class": (95.3, None),
        "NDPDC": (94.1, None),
        "NDPDC, 10 a class": (93.1, None),
    },
    "fashion-mnist": {
        "Dosser": (81.8, None),
        "Dosser, 10 a class": (81.6, None),
        "NDPDC": (78.8, None),
        "NDPDC, 10 a class": (77.7, None),
    },
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
_PRIVACY_PROJECT_CEILING = 99.0
# Method: accuracy in percent at epsilon 1 and at epsilon 3.
_DIRECT: dict[str, dict[str, tuple[float, float]]] = {
    "mnist": {
        "DPSUR": (97.93, 98.88),
        "ScatterNet": (97.78, 98.32),
        "DP-SGD on a CNN": (95.11, 96.82),
    },
    "fashion-mnist": {
        "DPSUR": (88.38, 89.71),
        "ScatterNet": (85.54, 89.01),
        "DP-SGD on a CNN": (80.25, 84.72),
    },
}


def _pairs(
    table: Mapping[str, Mapping[str, _Pair]],
    classifier: str,
    source: PublishedSource,
    epsilons: tuple[float, float] = (1.0, 10.0),
) -> Iterator[Published]:
    for dataset, rows in table.items():
        for method, values in rows.items():
            for epsilon, percent in zip(epsilons, values, strict=True):
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
            share = percent / 100
            yield Published(method, "mnist", None, share, "CNN", PRIVACY_PROJECT, noise)
    share = _PRIVACY_PROJECT_CEILING / 100
    yield Published("CNN", "mnist", math.inf, share, "CNN", PRIVACY_PROJECT)


PUBLISHED: tuple[Published, ...] = (
    *_pairs(_PRIVATE_SET, "ConvNet", PRIVATE_SET),
    *_pairs(_PRIVATE_SET_VARIANTS, "ConvNet", PRIVATE_SET),
    *_dp2_vae(),
    *_privacy_project(),
    *_pairs(_SOK, "LeNet", SOK),
    *_pairs(_DP_IMAGE_BENCH, "CNN", DP_IMAGE_BENCH),
    *_pairs(_OWN_CLAIM, "CNN", OWN_CLAIM),
    *_pairs(_FETA_PRO, "ResNet, WRN, ResNeXt", FETA_PRO),
    *_pairs(_DOSSER, "ConvNet", DOSSER),
    *_pairs(_DIRECT, "itself", DIRECT, epsilons=(1.0, 3.0)),
)


def published_on(dataset: str) -> list[Published]:
    """Figures on a built-in dataset, by its name. A user's own file has none."""
    return [figure for figure in PUBLISHED if figure.dataset == dataset]


def numbered_sources(dataset: str) -> dict[PublishedSource, int]:
    """The sources of a dataset's figures and the numbers by which plot and table refer to them."""
    sources = dict.fromkeys(figure.source for figure in published_on(dataset))
    return {source: number for number, source in enumerate(sources, 1)}


def to_draw(dataset: str) -> list[Published]:
    """One convolutional figure a method and epsilon: what the plot has room for."""
    kept: dict[tuple[str, float | None], Published] = {}
    for figure in published_on(dataset):
        # Without an epsilon it lies on the edge of the plot, where a variant needs no name.
        has_a_place = figure.epsilon is None or (
            math.isfinite(figure.epsilon) and not figure.is_variant
        )
        if has_a_place and figure.source.drawn and figure.classifier not in ("LR", "MLP"):
            kept.setdefault((figure.method, figure.epsilon), figure)
    return list(kept.values())


def published_of(dataset: str, known_as: str, epsilon: float | None = None) -> list[Published]:
    """Figures of a method, by the name it has in dpray; at one claimed epsilon, or at all."""
    return [
        figure
        for figure in published_on(dataset)
        if figure.known_as == known_as and (epsilon is None or figure.epsilon == epsilon)
    ]
