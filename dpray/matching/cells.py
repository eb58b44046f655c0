"""Cells of a class: which images of a set belong to which, and where they start.

A class may have several looks, and its mean tells none of them: records are told apart by the
nearest of a few centres, images are moved to the mean features of their own cell. Centres come
from released Gaussians, so all of this is public but for the cells of records.
Shapes: S classes, M cells a class, N images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpray.models.mixtures import GaussianMixture
from dpray.moments.subspace import nearest_cells

_DRAWS_AN_IMAGE = 20  # of the Gaussians, from which each cell's starts are taken


def cells_of_images(counts: Tensor, per_class: int) -> Tensor:
    """(N,): the cell of every image, class by class, from the released counts (S, M) of records.

    Every class has `per_class` images; its cells share them as they share the records, to the
    nearest whole number that adds up.
    """
    shares = per_class * counts / counts.sum(1, keepdim=True)
    whole = shares.floor().long()
    for own, share in zip(whole, shares, strict=True):
        left = per_class - int(own.sum())
        own[(share - own).argsort(descending=True, stable=True)[:left]] += 1
    return torch.arange(counts.numel()).repeat_interleave(whole.flatten())


def starts(
    gaussians: GaussianMixture, centres: Tensor, cells: Tensor, rng: torch.Generator
) -> Tensor:
    """(N, C, H, W): for every image a draw of its class's Gaussian that lies in its cell.

    A cell that no draw falls into starts at its centre.
    """
    num_cells = centres.shape[1]
    labels = (cells // num_cells).repeat(_DRAWS_AN_IMAGE)
    drawn = gaussians.points(labels, rng).cpu().to(centres.dtype)
    fell_into = nearest_cells(drawn, labels, centres)
    points = centres.flatten(0, 1)[cells].clone()
    for cell in cells.unique():
        found = drawn[fell_into == cell]
        wanted = (cells == cell).nonzero().squeeze(1)
        if len(found):
            points[wanted] = found[torch.randint(len(found), (len(wanted),), generator=rng)]
    return gaussians.images(points.to(gaussians.basis))
