"""Features of private records, computed once and kept on the private side.

Features are record-local, so keeping them changes nothing about the guarantee; they are as
private as the images, and lie in owner-only files, a block of records each. Blocks are counted
over the whole dataset: another number of workers finds the same files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpray.contract import Run
from dpray.data.folders import home
from dpray.data.records import TrainingData
from dpray.data.shards import BLOCK_SIZE, block_numbers
from dpray.models.batches import in_batches
from dpray.storage import private_folder, write_whole

_BATCH = 250  # what kymatio is fastest at on a processor; a GPU takes it as well


@torch.no_grad()
def private_features(data: TrainingData, module: nn.Module, kind: str, run: Run) -> Tensor:
    """`module` of this worker's images, in half precision, from the cache where it is there.

    Guarantee: record-local for a record-local `module`; nothing leaves the private side.
    """
    if kind == "pixels":
        return module(data.private.pixels)  # cheaper to compute than to read
    # The folder's name says nothing about the data to somebody who does not have them.
    name = hashlib.sha256(f"{kind}/{data.fingerprint}".encode()).hexdigest()[:32]
    folder = private_folder(private_folder(home() / "private") / "features" / name)
    numbers = block_numbers(data.num_records, run.world.rank, run.world.size)
    parts, start = [], 0
    module = module.to(run.device)
    with run.progress(f"{kind} features", len(data.private)) as bar:
        for number in numbers:
            count = min(BLOCK_SIZE, data.num_records - number * BLOCK_SIZE)
            path = folder / f"block-{number:05d}.safetensors"
            block = _read(path, count)
            if block is None:
                pixels = data.private.pixels[start : start + count]
                block = in_batches(lambda p: module(p).half(), pixels, _BATCH, run.device)
                write_whole(path, save({"features": block}))
            parts.append(block)
            start += count
            bar.advance(count)
    if not parts:  # fewer blocks than workers: this one has nothing
        return module(torch.zeros(1, *data.shape, device=run.device))[:0].half().cpu()
    return torch.cat(parts)


def _read(path: Path, count: int) -> Tensor | None:
    """A cached block, or None where there is none that is whole."""
    try:
        block = load_file(path)["features"]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    return block if len(block) == count else None
