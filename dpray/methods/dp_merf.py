"""DP-MERF: the mean embedding of every class, released once; a generator fitted to it for free.

Harder, Adamczewski and Park (2021), https://arxiv.org/abs/2002.11603. Random Fourier features of
an image have norm one by construction, so one noisy sum of them by class is one Gaussian release.
Private data are touched by that sum alone; fitting the generator is post-processing. The kernel's
width is a constant of the image size and is not taken from the data.
Shapes: N records, D pixels, F frequencies (2F features), S classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from dpray import models
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.embeddings import (
    SENSITIVITY,
    Embedding,
    means_of,
    noisy_embedding_sums,
    random_embedding,
)
from dpray.errors import BadInput
from dpray.methods import register
from dpray.privacy.queries import GaussianSum, PaidQuery


@register("dp-merf")
@dataclass(frozen=True, kw_only=True)
class DPMerf:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "generator fitted to a noisy mean embedding of each class"
    paper: ClassVar[str] = "Harder, Adamczewski and Park 2021"
    can_be_looked_at: ClassVar[bool] = True

    generator: Literal["conv", "mlp"] = "conv"
    frequencies: int = 2500  # two features each
    # Squared width of the kernel per pixel: a constant, for every dataset. It is the published one
    # for MNIST, a median distance there, and so known to all; docs/privacy.md says so.
    bandwidth: float = 0.135
    latent: int = 5
    hidden: int = 200
    steps: int = 3000
    images_per_class: int = 10  # generated in each step
    lr: float = 0.01

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        counts = (self.frequencies, self.latent, self.hidden, self.steps, self.images_per_class)
        if min(counts) < 1:
            raise BadInput(
                "frequencies, latent, hidden, steps and images_per_class must be at least 1"
            )
        if not 0 < self.bandwidth < math.inf or not 0 < self.lr < math.inf:
            raise BadInput(f"bandwidth {self.bandwidth} and lr {self.lr} must be above 0")

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        paid = run.ledger.pay(run.world.from_first(lambda: _query(run)))
        run.facts.update(
            sampling="all records, no sampling",
            steps=1,
            clip_norm=paid.query.sensitivity,
            noise_multiplier=paid.query.noise_multiplier,
        )
        embed = random_embedding(data.shape, self.frequencies, self.bandwidth, run)
        sums = run.once("mean-embedding", lambda: _release(data, embed, run, paid))
        target = means_of(sums, data.num_records)[0].float().to(run.device)
        arguments = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "latent": self.latent,
            "hidden": self.hidden,
        }
        name = f"{self.generator}-generator"
        torch.manual_seed(run.seed)
        module = models.build(name, **arguments).to(run.device)
        kept = run.checkpoints.latest("generator", ledger_heads=run.ledger.heads)
        release = Synthesizer(
            model=name,
            arguments=arguments,
            module=module,
            class_names=data.class_names,
            shape=data.shape,
        )
        if run.world.is_first:
            self._match(release, embed, target, run, kept)
        _take_from_first(module, run)
        return release

    def _match(
        self,
        release: Synthesizer,
        embed: Embedding,
        target: Tensor,
        run: Run,
        kept: Checkpoint | None,
    ) -> None:
        """Moves the generator's mean embedding of every class to the released one."""
        module = release.module
        optimizer = torch.optim.Adam(module.parameters(), lr=self.lr)
        labels = torch.arange(len(target)).repeat_interleave(self.images_per_class)
        first = 0
        if kept is not None:
            unpack(kept.tensors, {"generator": module}, optimizer)
            first = kept.step
        with run.progress("dp-merf generator", self.steps) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, self.steps):
                optimizer.param_groups[0]["lr"] = self.lr * _cosine(step, self.steps)
                rng = run.generator(f"latents {step}")
                means = embed(module(labels, rng)).reshape(len(target), self.images_per_class, -1)
                loss = (means.mean(1) - target).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                bar.advance()
                run.look(step + 1, self.steps, lambda: release)
                if run.checkpoints.due():
                    tensors = pack({"generator": module}, optimizer)
                    checkpoint = Checkpoint(step + 1, tensors, run.ledger.head)
                    run.checkpoints.save("generator", checkpoint)
        tensors = pack({"generator": module}, optimizer)
        run.checkpoints.save("generator", Checkpoint(self.steps, tensors, run.ledger.head))
        module.eval()


def _query(run: Run) -> GaussianSum:
    def with_noise(noise: float) -> GaussianSum:
        return GaussianSum(name="mean embedding", noise_multiplier=noise, sensitivity=SENSITIVITY)

    return run.at_noise(with_noise)


def _release(
    data: TrainingData, embed: Embedding, run: Run, paid: PaidQuery[GaussianSum]
) -> Tensor:
    # One bar for all of them: of a task's records not even the number is known to others.
    with run.progress("mean embedding", 1) as bar:
        private, classes = data.private, data.num_classes
        noisy = noisy_embedding_sums(private.pixels, private.labels, classes, embed, run, paid)
        bar.advance()
    return noisy


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def _take_from_first(module: nn.Module, run: Run) -> None:
    """Rank 0's weights on every rank: what is fitted to a release needs no second worker."""
    module.load_state_dict(
        {name: run.world.share(value) for name, value in module.state_dict().items()}
    )
    module.eval()
