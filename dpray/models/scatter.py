"""The scattering transform: two layers of fixed wavelets, no training and no data statistics.

J=2, eight angles: 81 channels a colour, a quarter of the height and width. The filters are
kymatio's (Andreux et al. 2020); its top-level torch module breaks on current scipy, the
frontend below it does not. Filters are constants: they move with the module and are not saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
from torch import Tensor, nn

_SCALE = 2
_CHANNELS = 81  # 1 + 2 * 8 + 8 * 8


class Scatter(nn.Module):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        step = 2**_SCALE
        # Up to a whole number of output pixels: padded with the edge, within each record.
        self.padding = (-width % step, -height % step)
        padded = (height + self.padding[1], width + self.padding[0])
        self.out_shape = (channels * _CHANNELS, padded[0] // step, padded[1] // step)
        # In a list, so that the filters stay out of the state dict: they are no weights.
        self._transform = [ScatteringTorch2D(J=_SCALE, shape=padded)]

    def forward(self, images: Tensor) -> Tensor:
        padded = F.pad(images, (0, self.padding[0], 0, self.padding[1]), mode="replicate")
        coefficients: Tensor = self._transform[0](padded.contiguous())
        return coefficients.flatten(1, 2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._transform[0]._apply(fn)
        return super()._apply(fn, recurse)
