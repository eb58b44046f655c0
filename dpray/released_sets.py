"""A set of images as a release: as it is, or with draws that are bent copies of its images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpray import models
from dpray.contract import Synthesizer
from dpray.data.records import TrainingData


def released_set(
    images: Tensor, labels: Tensor, data: TrainingData, warp: float = 0.0
) -> Synthesizer:
    """`images` (N, C, H, W), which must be public by now; draws are bent by up to `warp`."""
    arguments: dict[str, Any] = {"shape": list(data.shape), "num_images": len(images)}
    name = "image-set"
    if warp > 0:
        name, arguments = "warped-set", {**arguments, "warp": warp}
    module = models.build(name, **arguments)
    with torch.no_grad():
        module.get_buffer("images").copy_(images.clamp(0, 1))
        module.get_buffer("labels").copy_(labels)
    return Synthesizer(
        model=name,
        arguments=arguments,
        module=module.eval(),
        class_names=data.class_names,
        shape=data.shape,
    )
