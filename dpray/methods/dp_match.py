"""DP-Match: mean features of every class, released once; images are moved to them for free.

Distribution matching (Zhao and Bilen 2023, https://arxiv.org/abs/2110.04181) with one noisy target.
Private data are touched by six sums over all records, paid for together before the first: four for
noisy Gaussians (`dpray.moments`), the mean features of each cell of a class under several random
networks, and how many records are known to networks that were trained on draws bent more or less
(only where `warp` is left open). Draws of the noisy Gaussians say where the cells are, centre the
features, which leaves more of a record's norm to what tells images apart (docs/dp-match.md), and
are where the images start.
Shapes: N records, S classes, M networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpray import bending
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.checks import above_zero, between
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.embeddings import SENSITIVITY
from dpray.errors import BadInput
from dpray.gaussian_shares import gaussians_that_share
from dpray.matching.cells import cells_of_images, starts
from dpray.matching.images import LearntImages, SmoothPixels, refuse_wide_blur
from dpray.matching.means import distance, noisy_slot_means
from dpray.methods import register
from dpray.models.mixtures import GaussianMixture
from dpray.models.random_features import RandomFeatures
from dpray.moments.mixture import SHARES, cell_centres, noisy_mixture
from dpray.privacy.queries import GaussianSum
from dpray.released_sets import released_set

_STRENGTHS = (0.4, 1.0, 2.0)  # of bending, that records are asked about
_UNASKED = 1.0  # how much a look on the way bends, before the records were asked
_DRAWS = 2000  # of the Gaussians, that centre the features
_MOMENTUM = 0.5
_LAST_RATE = 0.01  # of the first one
_MOST_IMAGES = 10_000  # a class, that can be meant
_MOST_FEATURES = 20_000_000  # of all cells together, in float64: 160 MB
# Cells a class where the noise allows it: a cell's records must add up to the length of the noise
# on their sum, where a record adds about half of the norm it may have (docs/dp-match.md).
_CELLS = 10
_COMMON = 0.5


@dataclass(frozen=True)
class Towards:
    """What the images are moved to: the released means under every network, cell by cell."""

    networks: Sequence[RandomFeatures]
    means: Sequence[Tensor]
    cells: Tensor  # of every image

    def distance(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Under one network, drawn by `rng`."""
        chosen = int(torch.randint(len(self.networks), (1,), generator=rng))
        return distance(self.networks[chosen], images, self.cells, self.means[chosen])


@register("dp-match")
@dataclass(frozen=True, kw_only=True)
class DPMatch:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "images moved to noisy mean features of each class, released once"
    paper: ClassVar[str] = "distribution matching after Zhao and Bilen 2023"
    can_be_looked_at: ClassVar[bool] = True

    spc: int = 100  # images a class
    networks: int = 6
    # Looks that a class is taken to have, each with mean features of its own. None: 10, or as many
    # as the noise and the number of records allow.
    cells: int | None = None
    width: int = 32  # channels of the first convolution; later ones have twice as many
    steps: int = 300  # of the images, each towards the target of one network
    lr: float = 0.05
    blur: float = 0.7  # deviation in pixels of what the images are seen through; 0: of nothing
    # How much an image is bent at most when it is drawn: digits bear 2, garments hardly 0.4. With 0
    # the set is released as it is. None: the best of three strengths, by a noisy count of records.
    warp: float | None = None
    moments_share: float = 0.25  # of the budget, in squared Gaussian terms
    dimensions: int | None = None  # of the subspace the Gaussians live in; None: up to 100
    radius: float = 0.36  # longer images are scaled down to this, per root of a pixel

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        for name, most in (("spc", _MOST_IMAGES), ("networks", 1000), ("width", 1024)):
            if not 1 <= getattr(self, name) <= most:
                raise BadInput(f"{name} {getattr(self, name)} must be from 1 to {most}")
        if self.steps < 1:
            raise BadInput(f"steps {self.steps} must be at least 1")
        above_zero(self, "lr")
        refuse_wide_blur(self.blur, data.shape)
        between(self, 0, 3, "warp")
        if not 0 < self.moments_share < 1 or not 0 < self.radius <= 1:
            raise BadInput(
                f"moments_share {self.moments_share:g} and radius {self.radius:g} must be between "
                "0 and 1"
            )
        if self.cells is not None and not 1 <= self.cells <= self.spc:
            raise BadInput(
                f"cells {self.cells} must be from 1 to spc, {self.spc}: cells share the images"
            )
        pixels = math.prod(data.shape)
        if self.dimensions is not None and not 1 <= self.dimensions <= pixels:
            raise BadInput(f"dimensions {self.dimensions} must be 1 to {pixels}, all of an image")
        released = self._num_features(data) * data.num_classes * (self.cells or 1)
        if released > _MOST_FEATURES:
            raise BadInput(
                f"{self.networks} networks of width {self.width} give {released:,} numbers to "
                f"release; at most {_MOST_FEATURES:,}: take fewer or narrower ones"
            )

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        paid = [run.ledger.pay(query) for query in self._queries(run)]
        moments, (features, *bends) = paid[: len(SHARES)], paid[len(SHARES) :]
        run.facts.update(sampling="all records, no sampling")  # each part has a noise of its own
        with run.progress("dp-match moments", 1) as bar:
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            gaussians, inner = noisy_mixture(
                data,
                run,
                moments,
                dimensions=self.dimensions,
                radius=self.radius,
                components=None,
            )
            gaussians = gaussians.to(run.device)
            bar.advance()
        networks = self._networks(data, gaussians, run)
        num_cells = self._num_cells(data, features.query)
        centres = cell_centres(gaussians, num_cells, run)
        slots, num_slots = inner.cells(data.private.labels, centres), centres[..., 0].numel()
        released = noisy_slot_means(data, slots, num_slots, networks, run, features)
        cells = cells_of_images(released.counts.reshape(-1, num_cells), self.spc)
        start = starts(gaussians, centres, cells, run.generator("start"))
        images = SmoothPixels(cells // num_cells, start, self.blur).to(run.device)

        def so_far(warp: float = _UNASKED if self.warp is None else self.warp) -> Synthesizer:
            return released_set(images.all(), images.labels, data, warp)

        kept = run.checkpoints.latest("images", ledger_heads=run.ledger.heads)  # asks all ranks
        if run.world.is_first:
            towards = Towards(networks, [mean.to(run.device) for mean in released.means], cells)
            self._move(images, towards, run, kept, so_far)
        # Rank 0's images on every rank: what is fitted to a release needs no second worker.
        images.pixels.data.copy_(run.world.share(images.pixels.data))
        if not bends:
            return so_far()
        bent = [so_far(strength) for strength in _STRENGTHS]
        return bent[bending.best_of([release.module for release in bent], data, run, bends[0])]

    def _num_features(self, data: TrainingData) -> int:
        one = RandomFeatures(data.shape, self.width, torch.Generator())
        return self.networks * one.num_features

    def _num_cells(self, data: TrainingData, query: GaussianSum) -> int:
        """Cells of a class; where none are given, from what is public: records and noise."""
        if self.cells is not None:
            return self.cells
        noise = query.noise_multiplier * query.sensitivity * math.sqrt(self._num_features(data))
        records = data.num_records / data.num_classes
        room = _MOST_FEATURES // (self._num_features(data) * data.num_classes)
        most = min(_CELLS, self.spc, room)
        return max(1, min(most, int(_COMMON * records / noise) if noise else most))

    def _queries(self, run: Run) -> list[GaussianSum]:
        """What is asked of the records: Gaussians that share the budget as one."""
        asked = bending.SHARE if self.warp is None else 0.0
        moments = (1 - asked) * self.moments_share
        shares = {
            **{name: (share * moments, 1.0) for name, share in SHARES.items()},
            "class features": (1 - asked - moments, SENSITIVITY),
        }
        if asked:
            shares["bending"] = (asked, bending.sensitivity(len(_STRENGTHS)))

        return gaussians_that_share(shares, run)

    def _networks(
        self, data: TrainingData, gaussians: GaussianMixture, run: Run
    ) -> list[RandomFeatures]:
        """Random networks, centred on draws of released Gaussians: no record is read."""
        labels = torch.arange(_DRAWS) % data.num_classes
        draws = gaussians(labels, run.generator("draws"))
        made = []
        for number in range(self.networks):
            rng = run.generator(f"network {number}")
            network = RandomFeatures(data.shape, self.width, rng).to(run.device)
            network.centre_on(draws)
            # Computed on one rank and told to all: every rank must ask the same to the bit.
            network.centre.copy_(run.world.share(network.centre))
            made.append(network)
        return made

    def _move(
        self,
        images: LearntImages,
        towards: Towards,
        run: Run,
        kept: Checkpoint | None,
        so_far: Callable[[], Synthesizer],
    ) -> None:
        """Moves the images; after that their mean features are the released ones, but for noise."""
        optimizer = images.optimizer(self.lr, _MOMENTUM)
        every, first = torch.arange(len(images)), 0
        if kept is not None:
            unpack(kept.tensors, {"images": images}, optimizer)
            first = kept.step
        with run.progress("dp-match images", self.steps) as bar:
            bar.advance(first)
            for step in range(first, self.steps):
                falling = 0.5 * (1 + math.cos(math.pi * step / self.steps))
                optimizer.param_groups[0]["lr"] = self.lr * max(falling, _LAST_RATE)
                rng = run.generator(f"step {step}")
                optimizer.zero_grad()
                towards.distance(images(every), rng).backward()
                optimizer.step()
                images.settle()
                bar.advance()
                run.look(step + 1, self.steps, so_far)
                if run.checkpoints.due():
                    tensors = pack({"images": images}, optimizer)
                    checkpoint = Checkpoint(step + 1, tensors, run.ledger.head)
                    run.checkpoints.save("images", checkpoint)
        tensors = pack({"images": images}, optimizer)
        run.checkpoints.save("images", Checkpoint(self.steps, tensors, run.ledger.head))
