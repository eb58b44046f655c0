"""Features of private records, computed once and kept on the private side.

Features are record-local, so keeping them changes nothing about the guarantee; they are as
private as the images, and lie in owner-only files, a block of records each. Blocks are counted
over the whole dataset: another number of workers finds the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from dpray.pool import SerialPool
from dpray.storage import private_folder, write_whole

_BATCH = 250  # what kymatio is fastest at on a processor; a GPU takes it as well


@torch.no_grad()
def private_features(
    data: TrainingData,
    module: nn.Module,
    kind: str,
    run: Run,
    *,
    fan_out: bool = False,
    label: str | None = None,
) -> Tensor:
    """`module` of this worker's images, in half precision, from the cache where it is there.

    `kind` names all that the features depend on besides the data. With `fan_out` the missing
    blocks are jobs of the run's pool: for a module that takes minutes. `label` is for the bar.

    Guarantee: record-local for a record-local `module`; nothing leaves the private side.
    """
    if kind == "pixels":
        return module(data.private.pixels)  # cheaper to compute than to read
    # The folder's name says nothing about the data to somebody who does not have them.
    name = hashlib.sha256(f"{kind}/{data.fingerprint}".encode()).hexdigest()[:32]
    folder = private_folder(private_folder(home() / "private") / "features" / name)
    numbers = block_numbers(data.num_records, run.world.rank, run.world.size)
    counts = [min(BLOCK_SIZE, data.num_records - number * BLOCK_SIZE) for number in numbers]
    paths = [folder / f"block-{number:05d}.safetensors" for number in numbers]
    parts = [_read(path, count) for path, count in zip(paths, counts, strict=True)]
    missing = [place for place, part in enumerate(parts) if part is None]
    pool = run.pool if fan_out else SerialPool()
    with run.progress(label or f"{kind} features", len(data.private)) as bar:
        bar.advance(len(data.private) - sum(counts[place] for place in missing))
        made = pool.map(
            block_features,
            _Blocks(data.private.pixels, missing),
            shared=(module, str(run.device)),
            gpus=0.0 if run.device.type == "cpu" else 1.0,
            label=label or "features",
            quiet=True,
        )
        for place, block in zip(missing, made, strict=True):
            write_whole(paths[place], save({"features": block}))
            parts[place] = block
            bar.advance(counts[place])
    whole = [part for part in parts if part is not None]
    if not whole:  # fewer blocks than workers: this one has nothing
        return block_features(torch.zeros(1, *data.shape), (module, str(run.device)))[:0]
    return torch.cat(whole)


def block_features(pixels: Tensor, shared: tuple[nn.Module, str]) -> Tensor:
    """One block, for a pool: its features in half precision, on the CPU."""
    device = torch.device(shared[1])
    module = shared[0].to(device)
    return in_batches(lambda part: module(part).half(), pixels, _BATCH, device)


class _Blocks:
    """Pixels of some of a worker's blocks, cut out one by one as they are taken; has a length."""

    def __init__(self, pixels: Tensor, places: list[int]) -> None:
        self.pixels, self.places = pixels, places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Tensor]:
        # Only the last block of the whole may be short, and it is the last one of its share too.
        for place in self.places:
            # A copy: what travels is this block and not the storage that it is a window of.
            yield self.pixels[place * BLOCK_SIZE : (place + 1) * BLOCK_SIZE].clone()


def _read(path: Path, count: int) -> Tensor | None:
    """A cached block, or None where there is none that is whole."""
    try:
        block = load_file(path)["features"]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    return block if len(block) == count else None
