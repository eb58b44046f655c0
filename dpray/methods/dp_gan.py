"""DP-GAN: a conditional GAN whose critic learns from noisy gradients; the generator is released.

In the form of "Private GANs, revisited" (Bie et al. 2023, https://arxiv.org/abs/2302.02936): many
steps of the critic for each of the generator, Adam for both, cross-entropy that does not saturate.
Private records are touched in the critic's `noisy_gradient`, on Poisson batches: every one's
gradient is clipped over all tensors together. Generated images are public and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from dpray import models
from dpray.adversarial.duel import Duel
from dpray.adversarial.images import trained_on_images
from dpray.checks import above_zero, at_least_one, below_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.conditional_gans import DcganCritic, MlpCritic
from dpray.privacy.queries import PoissonGradients, gradients_at_noise, steps_of_epochs


@register("dp-gan")
@dataclass(frozen=True, kw_only=True)
class DPGan:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "generator of a conditional GAN whose critic got noisy gradients"
    paper: ClassVar[str] = "Bie et al. 2023 (Private GANs, revisited); Xie et al. 2018"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # Their fixed schedule: at epsilon 10, 450000 steps of the critic at a noise of 1.
        "paper": {
            "network": "dcgan",
            "latent": 128,
            "hidden": 64,
            "batch_size": 128,
            "steps": 450_000,
            "critic_steps": 50,
            "num_fakes": 128,
            "clip_norm": 1.0,
            "lr_critic": 2e-4,
            "lr_generator": 2e-4,
            "beta2": 0.999,
            "averaging": 0.0,
        },
    }
    gpu_preset: ClassVar[str] = "paper"
    can_be_looked_at: ClassVar[bool] = True

    # mlp and conv: a critic of two hidden layers; dcgan: both networks convolutional, as published.
    network: Literal["mlp", "conv", "dcgan"] = "mlp"
    latent: int = 16
    hidden: int = 256  # units of the first layer of both; for dcgan maps of the critic's first
    label_scale: float = 4.0  # not dcgan: of the one-hot label beside pixels, in the critic
    own_scores: bool = True  # not dcgan: the critic has a score for each class
    loss: Literal["bce", "wgan"] = "bce"
    weight_clip: float = 0.05  # of a wgan critic
    batch_size: int = 1024  # expected: batches are Poisson samples
    epochs: float = 60
    steps: int | None = None  # of the critic, instead of epochs
    critic_steps: int = 4  # for each of the generator: only these cost
    num_fakes: int = 512
    clip_norm: float = 1.0
    lr_critic: float = 1e-3
    lr_generator: float = 1e-3
    lr_critic_left: float = 1.0  # at the last step, of the critic's rate
    beta2: float = 0.9  # of Adam; the first is 0.5
    averaging: float = 0.98  # decay of the average of the generator's weights
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        if min(self.latent, self.hidden, self.batch_size) < 1:
            raise BadInput("latent, hidden and batch_size must be at least 1")
        at_least_one(self, "steps")
        above_zero(self, "epochs", "clip_norm", "label_scale")
        below_one(self, "beta2")
        self._duel(data).check()
        self._critic(data)  # which refuses images that are too small for it

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        torch.manual_seed(run.seed)
        release, critic = self._untrained(data), self._critic(data)
        return trained_on_images(release, critic, self._duel(data), data, run, self._query(data))

    def _untrained(self, data: TrainingData) -> Synthesizer:
        name = f"{self.network}-generator"
        arguments: dict[str, Any] = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "latent": self.latent,
        }
        if self.network == "dcgan":
            arguments["width"] = self.hidden
        else:
            arguments |= {"hidden": self.hidden, "biased": False}
        return Synthesizer(
            model=name,
            arguments=arguments,
            module=models.build(name, **arguments),
            class_names=data.class_names,
            shape=data.shape,
        )

    def _critic(self, data: TrainingData) -> nn.Module:
        if self.network == "dcgan":
            return DcganCritic(data.shape, data.num_classes, self.hidden)
        hidden = (self.hidden, max(1, self.hidden // 2))
        return MlpCritic(
            data.shape, data.num_classes, hidden, self.label_scale, own_scores=self.own_scores
        )

    def _duel(self, data: TrainingData) -> Duel:
        return Duel(
            loss=self.loss,
            critic_steps=self.critic_steps,
            num_fakes=self.num_fakes,
            num_classes=data.num_classes,
            lr_critic=self.lr_critic,
            lr_generator=self.lr_generator,
            weight_clip=self.weight_clip,
            averaging=self.averaging,
            micro_batch=self.micro_batch,
            betas=(0.5, self.beta2),
            lr_critic_left=self.lr_critic_left,
        )

    def _steps(self, data: TrainingData) -> int:
        return self.steps or steps_of_epochs(
            self.epochs, num_records=data.num_records, batch_size=self.batch_size
        )

    def _query(self, data: TrainingData) -> Callable[[float], PoissonGradients]:
        return gradients_at_noise(
            "dp-gan",
            num_records=data.num_records,
            batch_size=self.batch_size,
            steps=self._steps(data),
            clip_norm=self.clip_norm,
        )
