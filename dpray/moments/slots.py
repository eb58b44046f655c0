"""Released moments of slots, which are classes or cells of a class, and what is likely of them.

Nothing here reads a record. Shapes: S slots, K directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpray.moments.shrinkage import kept_matrices, kept_vectors


@dataclass(frozen=True)
class Moments:
    """Released count, mean and covariance of each slot; all but centres in scaled coordinates."""

    counts: Tensor  # (S,)
    centres: Tensor  # (S, K), that were public before
    shifts: Tensor  # (S, K): how far the mean is from the centre, scaled
    covariances: Tensor  # (S, K, K), not yet positive, scaled
    # Deviation of the noise in one entry of them, for each slot.
    shift_noise: Tensor
    covariance_noise: Tensor

    def shrunk(self, components: int) -> Moments:
        """Moments of cells, moved to what their class says, and those of classes to what all say.

        `components` slots in a row are a class. The noise is known, so what of a difference is
        noise is known as well, on the average.
        """
        counts = self.counts.reshape(-1, components)
        records = counts.sum(1)
        weights = (counts / records.unsqueeze(1)).flatten()
        weighted = weights.reshape(-1, 1, 1) * self.covariances
        of_class = weighted.unflatten(0, (-1, components)).sum(1)
        noise = (weights * self.covariance_noise).reshape(-1, components).norm(dim=1)
        of_all = ((records / records.sum()).reshape(-1, 1, 1) * of_class).sum(0)
        of_class = positive(of_all + kept_matrices(of_class - of_all, noise))
        of_cell = of_class.repeat_interleave(components, 0)
        if components > 1:
            beside = self.covariances - of_cell
            of_cell = of_cell + kept_matrices(beside, self.covariance_noise)
        return replace(
            self,
            shifts=kept_vectors(self.shifts, self.shift_noise),
            covariances=of_cell,
        )


def positive(matrices: Tensor) -> Tensor:
    """The nearest that can be covariances: what noise made negative is no variance."""
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT


def factors_of(matrices: Tensor) -> Tensor:
    """(..., K, K): each times its transpose is its matrix, without what is negative of that."""
    values, vectors = torch.linalg.eigh(matrices)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
