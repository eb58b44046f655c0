"""The running average of weights: post-processing of a private training, free and worth points."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def move_average(average: nn.Module, model: nn.Module, step: int, decay: float) -> None:
    """Moves the running average; early on it forgets faster, so that it has no cold start.

    Buffers, such as the statistics of a BatchNorm, are averages already: those of the model.
    """
    decay = min(decay, step / (step + 10))
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 1 - decay)
    for buffer, new_buffer in zip(average.buffers(), model.buffers(), strict=True):
        buffer.copy_(new_buffer)
