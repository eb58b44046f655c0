"""What of noisy numbers is signal, where the noise is known and there are several of a kind.

Differences from what they have in common are taken back, entry by entry, to what is likely: an
entry that differs between slots by no more than its noise is noise, whatever it says of a single
slot. What is likely of an entry is learnt from all slots at once (empirical Bayes). Reads released
numbers only.
Shapes: S slots, K directions.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-300


def kept_vectors(vectors: Tensor, noise: Tensor) -> Tensor:
    """(S, K): `vectors` (S, K) around zero, without what their noise (S,) explains."""
    square = noise.square().unsqueeze(1)
    signal = (vectors.square() - square).mean(0).clamp(min=0)
    return vectors * _share(signal, square)


def kept_matrices(matrices: Tensor, noise: Tensor) -> Tensor:
    """(S, K, K): symmetric `matrices` around zero, without what their noise (S,) explains.

    `noise` is the deviation in an entry of the diagonal; that of others is less by the root of two.
    Entries beside the diagonal are taken to be as loud as their row and their column.
    """
    size = matrices.shape[1]
    beside = 1 - torch.eye(size, dtype=matrices.dtype)
    square = noise.square().reshape(-1, 1, 1) * (1 - 0.5 * beside)
    excess = (matrices.square() - square).mean(0)
    loud = (excess * beside).sum(1).clamp(min=0)
    signal = loud.unsqueeze(1) * loud / loud.sum().clamp(min=_TINY) * beside
    signal = signal + torch.diag(excess.diagonal().clamp(min=0))
    return matrices * _share(signal, square)


def _share(signal: Tensor, noise: Tensor) -> Tensor:
    return signal / (signal + noise).clamp(min=_TINY)
