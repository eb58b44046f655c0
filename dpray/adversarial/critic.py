"""The critic's gradient: the private half noisy, the generated half free.

A critic is taught by private examples and by generated ones. The first half is one noisy gradient,
paid for. The second reads nothing private: its examples are held to the same norm, so that neither
half shouts the other down, and get no noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpray.privacy.gradients import clipped_public_sum, noisy_gradient
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients
from dpray.world import World

LossesOfRows = Callable[[Tensor], Tensor]


def set_critic_gradient(
    critic: nn.Module,
    real_losses: LossesOfRows,
    fake_losses: LossesOfRows,
    num_fakes: int,
    ids: Tensor,
    step: int,
    *,
    paid: PaidQuery[PoissonGradients],
    key: RunKey,
    world: World,
    micro_batch: int,
) -> None:
    """Sets `p.grad` of the critic. `fake_losses` maps rows of the generated examples to losses.

    Guarantee: private records are read in `noisy_gradient` alone. The generated examples must be
    public: from a generator that has heard of private ones through this gradient only.
    """
    noisy_gradient(
        critic,
        real_losses,
        ids,
        step,
        paid=paid,
        key=key,
        world=world,
        micro_batch=micro_batch,
    )
    params = [p for p in critic.parameters() if p.requires_grad]
    own = torch.arange(num_fakes)[world.rank :: world.size]
    total = clipped_public_sum(critic, fake_losses, own, paid.query.clip_norm, micro_batch)
    mean = world.sum(total) / num_fakes
    for p, piece in zip(params, mean.split([p.numel() for p in params]), strict=True):
        assert p.grad is not None
        p.grad += piece.view(p.shape)
