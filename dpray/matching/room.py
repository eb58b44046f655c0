"""Whether the matching of so many images fits the memory: asked before anything is paid."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from dpray.errors import BadInput
from dpray.memory import free_memory, kept_bytes
from dpray.models.generators import Shape

# Over what the forward pass keeps: the gradient of the gradient keeps and passes on more of it.
_TWICE_DIFFERENTIATED = 6.0
_SHARE = 0.8  # of what is free: the rest is for the private batch and for others


def refuse_what_does_not_fit(
    make_network: Callable[[], nn.Module],
    shape: Shape,
    spc: int,
    num_classes: int,
    num_snapshots: int,
) -> None:
    """As if one process held all images: with several workers it is less for each."""
    count = spc * num_classes
    needed = count * (bytes_per_image(make_network, shape) + 4 * num_snapshots * math.prod(shape))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    free = _SHARE * free_memory(device)
    if needed > free:
        fits = int(spc * free / needed)
        raise BadInput(
            f"{spc} images for each of {num_classes} classes need {needed / 2**30:,.1f} GB and "
            f"{free / 2**30:,.1f} GB are free: "
            + (f"use spc {fits} or less" if fits else "use a smaller network")
        )


def bytes_per_image(make_network: Callable[[], nn.Module], shape: Shape) -> int:
    """Memory that one image takes while it is matched: measured on a forward pass."""
    with torch.random.fork_rng(devices=[]):
        network = make_network()
    image = torch.zeros(1, *shape)
    return int(_TWICE_DIFFERENTIATED * kept_bytes(lambda: network(image), network.parameters()))
