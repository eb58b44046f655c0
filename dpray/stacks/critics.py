"""Critics of subsets: what they learn from their own records, and what they say of public images.

A critic is taught as in Gulrajani et al. 2017 (WGAN-GP, https://arxiv.org/abs/1704.00028), on the
private side, where it costs nothing. What leaves it is the gradient of its scores by generated
images, which `privacy.subset_sums` clips, one row a subset, and noises.
Shapes: n subsets of a chunk, P records of the largest of them, F and B generated images, S classes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpray.models.conditional_gans import DcganCritic
from dpray.models.generators import Shape
from dpray.models.teachers import ClassCritic
from dpray.stacks.contributions import Weights

NOISE_A_RECORD = 2  # which generated image a record is paired with, and how the two are mixed
_DRIFT = 1e-3  # weight of squared scores: without it all of them may wander off together


@dataclass(frozen=True)
class CriticGoal:
    """Which critic, and how much its slope between records and images counts. Travels with jobs."""

    network: Literal["mlp", "dcgan"]
    shape: Shape  # of the images it sees
    num_classes: int
    hidden: int  # units, or maps of the first convolution
    penalty: float

    def build(self, seed: int) -> nn.Module:
        """A fresh critic, whose scores are all zero.

        All critics start from it: what it said at random, they would say together, and their mean
        would hear it louder than what each has learnt.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            inputs = self.shape[0] * self.shape[1] * self.shape[2]
            critic = (
                DcganCritic(self.shape, self.num_classes, self.hidden)
                if self.network == "dcgan"
                else ClassCritic(inputs, self.num_classes, self.hidden)
            )
        last = [layer for layer in critic.modules() if isinstance(layer, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return critic

    def objective(self, device: torch.device) -> CriticObjective:
        return CriticObjective(self.build(0).to(device), self.num_classes, self.penalty)

    def digest(self, *more: str) -> str:
        """What a critic depends on besides its subset; `more` says how it is taught."""
        return hashlib.sha256(json.dumps([asdict(self), *more]).encode()).hexdigest()


@dataclass(frozen=True)
class CriticObjective:
    """The loss of a critic, as `SubsetObjective` has it.

    What it faces is public: `images` (F, C, H, W), of class 0, 1, ... S - 1 in turn, F a multiple
    of S. Every record is paired with one of them of its own class.
    """

    model: nn.Module
    num_classes: int
    penalty: float

    def __call__(
        self,
        critic: Weights,
        public: Weights,
        pixels: Tensor,
        labels: Tensor,
        mask: Tensor,
        noise: Tensor,
    ) -> Tensor:
        images, uniform = public["images"], torch.special.ndtr(noise)
        per_class = len(images) // self.num_classes
        turn = (uniform[:, 0] * per_class).long().clamp(max=per_class - 1)
        fakes = images[turn * self.num_classes + labels]
        mixed = fakes + uniform[:, 1, None, None, None] * (pixels - fakes)
        slopes = grad(lambda points: self.scores(critic, points, labels).sum())(mixed)
        # A root is not differentiable at zero, where the slope of a fresh critic may be.
        steepness = (slopes.square().sum((1, 2, 3)) + 1e-12).sqrt()
        real = self.scores(critic, pixels, labels)
        losses = self.scores(critic, fakes, labels) - real
        losses = losses + self.penalty * (steepness - 1).square() + _DRIFT * real.square()
        return (losses * mask).sum() / mask.sum().clamp_min(1)

    def scores(self, critic: Weights, images: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = functional_call(self.model, dict(critic), (images, labels))
        return found


def image_gradients(
    objective: CriticObjective, critics: Weights, images: Tensor, labels: Tensor
) -> Tensor:
    """(n, B*C*H*W): for every critic the gradient by the images of minus the sum of its scores.

    NOT clipped and NOT noised.
    """

    def badness(points: Tensor, critic: Weights) -> Tensor:
        return -objective.scores(critic, points, labels).sum()

    raw = vmap(grad(badness), in_dims=(None, 0))(images, dict(critics))
    return raw.flatten(1)
