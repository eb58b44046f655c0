"""A small critic that knows classes: the same inputs get another score for every class.

No BatchNorm, with which a score would depend on the rest of its batch.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from dpray.models.generators import one_hot

_SLOPE = 0.2  # of LeakyReLU below zero


class ClassCritic(nn.Module):
    """One hidden layer, or without hidden units a straight line for each class."""

    def __init__(self, inputs: int, num_classes: int, hidden: int = 0) -> None:
        super().__init__()
        self.num_classes = num_classes
        inner = [nn.Linear(inputs, hidden), nn.LeakyReLU(_SLOPE)] if hidden else []
        self.layers = nn.Sequential(*inner, nn.Linear(hidden or inputs, num_classes))

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """(N, ...) inputs and (N,) labels to (N,) scores: how real it is, for that class."""
        flat = inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))
        scores: Tensor = self.layers(flat)
        return (scores * one_hot(labels, self.num_classes, like=scores)).sum(1)
