"""How far every pixel lies from the edge of the ink, and the ink again from that.

Seen so, a thicker stroke is a number more at every pixel and a stroke that lies a little beside
another one looks much like it: what images of a class differ in is told by far fewer numbers than
their brightness, and what is drawn from such numbers has sharp edges. Record-local, and nothing
here is learnt. Distances are to a fraction of a pixel, which grey edges tell, so this is not the
transform of black and white that libraries have.
Shapes: N images, C channels, H, W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

_OUTSIDE, _INSIDE = 3.0, 2.0  # pixels: what lies farther looks as if it lay there
_FAINT = 0.1  # what is nearer to black, or to white, is taken to be it
_FAR = 1e4  # squared pixels, beyond any frame that is looked at
_IMAGES = 250  # in memory at once: the transform takes a table of every row


def nearness(images: Tensor) -> Tensor:
    """(N, C, H, W), from 0 far outside of the ink to 1 deep in it."""
    coverage = images.flatten(0, 1)
    distances = [_signed_distances(part) for part in coverage.split(_IMAGES)]
    within = torch.cat(distances).clamp(-_INSIDE, _OUTSIDE).reshape(images.shape)
    return (_OUTSIDE - within) / (_OUTSIDE + _INSIDE)


def ink(near: Tensor) -> Tensor:
    """The images whose `nearness` this is, but for how grey an edge was."""
    return (0.5 - _OUTSIDE + near * (_OUTSIDE + _INSIDE)).clamp(0, 1)


def _signed_distances(coverage: Tensor) -> Tensor:
    """(M, H, W): pixels from the edge, negative inside. A grey pixel lies on it, more or less."""
    far = torch.full_like(coverage, _FAR)
    outer = torch.where(coverage <= _FAINT, far, (0.5 - coverage).clamp(min=0).square())
    inner = torch.where(coverage >= 1 - _FAINT, far, (coverage - 0.5).clamp(min=0).square())
    return _to_nearest(outer).sqrt() - _to_nearest(inner).sqrt()


def _to_nearest(start: Tensor) -> Tensor:
    """(M, H, W): the least of `start` elsewhere and the squared distance to there."""
    along_rows = _along_last(start)
    return _along_last(along_rows.mT).mT


def _along_last(start: Tensor) -> Tensor:
    places = torch.arange(start.shape[-1], device=start.device).to(start)
    squares = (places.unsqueeze(1) - places).square()
    return (start.unsqueeze(-2) + squares).amin(-1)
