"""Drawn images on disk, in the two forms that `dpray run --dataset` reads again.

An .npz file with a grid beside it, or a folder of class folders with a grid in it. Neither is
ever seen half written. Shapes: N images, C channels, H, W pixels, as bytes.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dpray.progress import Progress, silent
from dpray.reporting.grid import named_rows
from dpray.storage import clear_errors, write_whole

MARK = "sample.json"  # tells a folder that was written here from any other
_GRID_COLUMNS = 10


def write_npz(
    out: Path,
    images: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    summary: Mapping[str, Any],
) -> Path:
    """Images, labels and class names, and in `drawn` what they were drawn from."""
    file = io.BytesIO()
    drawn = np.array(json.dumps(summary))
    np.savez(file, images=images, labels=labels, class_names=np.array(names), drawn=drawn)
    write_whole(out, file.getvalue())
    write_whole(out.with_suffix(".png"), _grid_png(images, labels, names))
    return out.with_suffix(".png")


def write_folder(
    out: Path,
    images: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    summary: Mapping[str, Any],
    progress: Progress = silent,
) -> Path:
    """Class folders, a grid and `summary`, made beside `out` and moved there whole."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    folders = [partial / name for name in folder_names(names)]
    digits = len(str(len(images) - 1))
    try:
        with clear_errors(out), progress("writing", len(images)) as bar:
            partial.mkdir()
            for folder in folders:
                folder.mkdir()
            for number, (image, label) in enumerate(zip(images, labels, strict=True)):
                pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
                name = f"{number:0{digits}}.png"
                Image.fromarray(pixels).save(folders[label] / name)
                bar.advance()
            (partial / "grid.png").write_bytes(_grid_png(images, labels, names))
            (partial / MARK).write_text(json.dumps(summary, indent=2) + "\n")
            if out.is_dir() and any(out.iterdir()):
                shutil.rmtree(out)  # the caller lets a marked or empty folder pass, and no other
            os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out / "grid.png"


def folder_names(names: Sequence[str]) -> list[str]:
    """Names that every file system takes, none hidden and no two alike, in the given order."""
    made: list[str] = []
    for number, name in enumerate(names):
        safe = re.sub(r"[^\w .-]+", "-", name).strip(" .-")[:60] or "class"
        while safe.casefold() in {other.casefold() for other in made}:
            safe += f"-{number}"
        made.append(safe)
    return made


def _grid_png(images: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> bytes:
    """The first images of every class, one row a class; white where a class has fewer."""
    rows = [np.flatnonzero(labels == number)[:_GRID_COLUMNS] for number in range(len(names))]
    columns = max(len(row) for row in rows)
    tiles = np.full((len(names), columns, *images.shape[1:]), 255, np.uint8)
    for number, row in enumerate(rows):
        tiles[number, : len(row)] = images[row]
    file = io.BytesIO()
    shape = (-1, *images.shape[1:])
    named_rows(torch.from_numpy(tiles.reshape(shape)), names).save(file, format="PNG")
    return file.getvalue()
