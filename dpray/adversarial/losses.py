"""What critic and generator want, as a loss for each score: no mean over examples is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

PerScore = Callable[[Tensor], Tensor]  # (N,) scores to (N,) losses


@dataclass(frozen=True)
class AdversarialLoss:
    real: PerScore  # of the critic, on private examples
    fake: PerScore  # of the critic, on generated ones
    generator: PerScore


LOSSES: dict[str, AdversarialLoss] = {
    # Wasserstein: means something for critics of bounded slope only, by clamped weights.
    "wgan": AdversarialLoss(lambda s: -s, lambda s: s, lambda s: -s),
    # Cross-entropy, the generator's not saturating.
    "bce": AdversarialLoss(lambda s: F.softplus(-s), F.softplus, lambda s: F.softplus(-s)),
}
