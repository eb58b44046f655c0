"""Images side by side: plain grids, and one row a class of what a synthesizer draws.

Pixels are shown as they are, enlarged without smoothing: what a generator gets wrong at the
level of pixels stays visible. Shapes: N images, C channels (1 or 3), H, W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dpray.contract import Synthesizer
from dpray.errors import BadInput
from dpray.models.generators import ImageSet

_SMALLEST_TILE = 56  # screen pixels: less is not legible
_LONGEST_NAME = 14
_PAPER, _INK = 255, 40


def as_bytes(pixels: Tensor) -> np.ndarray:
    """[0, 1] to 0 to 255, to the nearest."""
    return (pixels.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def grid(images: Tensor, columns: int, pad: int = 2) -> Image.Image:
    """(N, C, H, W) in [0, 1], or of bytes, in rows of `columns`; gaps of `pad` white pixels."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or columns < 1:
        raise BadInput(
            f"cannot show images of shape {tuple(images.shape)} in {columns} columns; expected "
            "(N, C, H, W) with 1 or 3 channels, and at least 1 column"
        )
    tiles = images.cpu().numpy() if images.dtype == torch.uint8 else as_bytes(images)
    scale = _scale(images)
    tiles = tiles.repeat(scale, axis=2).repeat(scale, axis=3)
    count, channels, height, width = tiles.shape
    rows = -(-count // columns)
    shape = (rows * (height + pad) + pad, columns * (width + pad) + pad, channels)
    canvas = np.full(shape, _PAPER, np.uint8)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        top, left = pad + row * (height + pad), pad + column * (width + pad)
        canvas[top : top + height, left : left + width] = tile.transpose(1, 2, 0)
    return Image.fromarray(canvas[:, :, 0] if channels == 1 else canvas)


def named_rows(images: Tensor, names: Sequence[str], pad: int = 2) -> Image.Image:
    """A grid of one row a name, with as many images each; the names stand at the left."""
    tiles = grid(images, columns=max(1, len(images) // len(names)), pad=pad)
    font = ImageFont.load_default(size=12)
    short = [name if len(name) <= _LONGEST_NAME else f"{name[:12]}.." for name in names]
    margin = 8 + max(round(font.getlength(name)) for name in short)
    canvas = Image.new(tiles.mode, (tiles.width + margin, tiles.height), "white")
    canvas.paste(tiles, (margin, 0))
    pen = ImageDraw.Draw(canvas)
    pitch = images.shape[2] * _scale(images) + pad
    ink = _INK if tiles.mode == "L" else (_INK, _INK, _INK)
    for row, name in enumerate(short):
        middle = (margin - 4, pad + row * pitch + (pitch - pad) / 2)
        pen.text(middle, name, fill=ink, font=font, anchor="rm")
    return canvas


def class_grid(release: Synthesizer, per_class: int, rng: torch.Generator) -> Image.Image:
    """`per_class` images of every class, one row a class: drawn, or the first ones of a set.

    To draw from a set is to pick one of its images, and a small one would be shown twice.
    """
    if per_class < 1:
        raise BadInput(f"{per_class} images a class are out of range: at least 1")
    if isinstance(release.module, ImageSet):
        return _first_of_set(release.module, per_class, release.class_names)
    labels = torch.arange(len(release.class_names)).repeat_interleave(per_class)
    return named_rows(release.sample(labels, rng), release.class_names)


def _first_of_set(images: ImageSet, per_class: int, names: Sequence[str]) -> Image.Image:
    own = [(images.labels == label).nonzero().flatten() for label in range(len(names))]
    shown = min(per_class, *map(len, own))
    return named_rows(images.images[torch.cat([rows[:shown] for rows in own])], names)


def _scale(images: Tensor) -> int:
    """How many times to enlarge: the least that makes the shorter side legible."""
    return max(1, -(-_SMALLEST_TILE // max(1, min(images.shape[2:]))))
