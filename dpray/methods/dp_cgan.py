"""DP-CGAN: a conditional GAN of two-layer networks, one noisy step of the critic for each other.

After Torkzadehmahani et al. 2019 (https://arxiv.org/abs/2001.09700), with what broke its guarantee
put right. Every record's gradient is clipped over all tensors together, where the original clipped
each of four to the whole bound; batches are Poisson samples; labels of generated images are drawn
evenly, where it took those of the private batch. Private records are touched in `noisy_gradient`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from dpray import models
from dpray.adversarial.duel import Duel
from dpray.adversarial.images import trained_on_images
from dpray.checks import above_zero
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.conditional_gans import MlpCritic
from dpray.privacy.queries import PoissonGradients, gradients_at_noise

_MODEL = "conditional-decoder"  # two linear layers with a ReLU between them, and a sigmoid


@register("dp-cgan")
@dataclass(frozen=True, kw_only=True)
class DPCgan:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "generator of a two-layer conditional GAN with a noisy critic"
    paper: ClassVar[str] = "Torkzadehmahani et al. 2019"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # As many steps as their accountant allowed; what they truly cost sets the noise here.
        "paper": {"steps": 30_303, "label_scale": 1.0, "averaging": 0.0},
    }
    gpu_preset: ClassVar[str] = "paper"
    can_be_looked_at: ClassVar[bool] = True

    latent: int = 100
    hidden: int = 128  # units of both networks
    label_scale: float = 4.0  # of the one-hot label, in both: at 1 it is too quiet under noise
    batch_size: int = 600  # expected: batches are Poisson samples
    steps: int = 10_000
    critic_steps: int = 1  # for each of the generator: only these cost
    num_fakes: int = 600
    clip_norm: float = 1.1
    lr_critic: float = 0.1  # of plain gradient descent, at first
    lr_critic_left: float = 0.52  # at the last step, of that rate
    lr_generator: float = 1e-3  # of Adam
    averaging: float = 0.99  # decay of the average of the generator's weights; theirs had none
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        if min(self.latent, self.hidden, self.batch_size, self.steps) < 1:
            raise BadInput("latent, hidden, batch_size and steps must be at least 1")
        above_zero(self, "clip_norm", "label_scale")
        self._duel(data).check()

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        torch.manual_seed(run.seed)
        release, critic = self._untrained(data), self._critic(data)
        return trained_on_images(release, critic, self._duel(data), data, run, self._query(data))

    def _untrained(self, data: TrainingData) -> Synthesizer:
        arguments = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "latent": self.latent,
            "hidden": self.hidden,
            "label_scale": self.label_scale,
        }
        return Synthesizer(
            model=_MODEL,
            arguments=arguments,
            module=_he_normal(models.build(_MODEL, **arguments)),
            class_names=data.class_names,
            shape=data.shape,
        )

    def _critic(self, data: TrainingData) -> nn.Module:
        return _he_normal(
            MlpCritic(data.shape, data.num_classes, (self.hidden,), self.label_scale, "relu")
        )

    def _duel(self, data: TrainingData) -> Duel:
        return Duel(
            loss="bce",
            critic_steps=self.critic_steps,
            num_fakes=self.num_fakes,
            num_classes=data.num_classes,
            lr_critic=self.lr_critic,
            lr_generator=self.lr_generator,
            weight_clip=math.inf,  # of a wgan alone
            averaging=self.averaging,
            micro_batch=self.micro_batch,
            betas=(0.9, 0.999),
            critic_optimizer="sgd",
            lr_critic_left=self.lr_critic_left,
        )

    def _query(self, data: TrainingData) -> Callable[[float], PoissonGradients]:
        return gradients_at_noise(
            "dp-cgan",
            num_records=data.num_records,
            batch_size=self.batch_size,
            steps=self.steps,
            clip_norm=self.clip_norm,
        )


def _he_normal(module: nn.Module) -> nn.Module:
    """Weights drawn as there: normal, of variance two over the number of inputs; biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
            nn.init.zeros_(layer.bias)
    return module
