"""Stage 1 of DP2-VAE as a whole: trains, over a pool, the encoders that a store does not hold yet.

Private side. A block is written as it arrives, so this process never holds more than one, and
what was written is not trained again after a kill. A job holds the records of its own subsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor

from dpray.memory import free_memory
from dpray.pool import Pool
from dpray.progress import Progress, silent
from dpray.stacks.blocks import block_size, encoder_bytes, fastest_block
from dpray.stacks.pretrain import EncoderJob, pretrain_block
from dpray.stacks.recipes import EncoderSettings
from dpray.stacks.store import EncoderStore
from dpray.stacks.subsets import Subsets


class EncoderJobs:
    """The jobs of some blocks of subsets, made one by one as they are taken; has a length."""

    def __init__(
        self, subsets: Subsets, blocks: tuple[Tensor, ...], settings: EncoderSettings
    ) -> None:
        self.subsets, self.blocks, self.settings = subsets, blocks, settings

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[EncoderJob]:
        for block in self.blocks:
            batch = self.subsets.batch(block).coarser(self.settings.grain)
            yield EncoderJob(tuple(block.tolist()), batch, self.settings)


def pretrain(
    subsets: Subsets,
    store: EncoderStore,
    pool: Pool,
    settings: EncoderSettings,
    *,
    records: int,
    numbers: Tensor,
    block: int | None = None,
    progress: Progress = silent,
) -> None:
    """Fills `store` with the encoders of `numbers`.

    `numbers` is the public list of the subsets whose records are all with this worker. One of
    them without a record gets an encoder too, which stays at its start, so that neither bar nor
    store tells how many those are. `records` is the public mean of a subset's number of records,
    from which memory is judged: how many this worker has is private. `progress` counts encoders.
    """
    gpus = 0.0 if settings.device == "cpu" else 1.0
    present = store.present()
    missing = torch.tensor([k for k in numbers.tolist() if k not in present], dtype=torch.long)
    if block is None and len(missing):
        block = block_size(
            encoder_bytes(settings, 2 * records),
            free_memory(settings.device),
            # A GPU is used by the worker that holds it, one block after the other.
            1 if gpus else os.cpu_count() or 1,
            fastest=fastest_block(settings),
            num_encoders=len(missing),
        )
    # Subsets of about one size together, the largest first.
    blocks: tuple[Tensor, ...] = ()
    if block is not None and len(missing):
        blocks = subsets.by_size(missing).tensor_split(-(-len(missing) // block))
    jobs = EncoderJobs(subsets, blocks, settings)
    with progress("encoders", len(numbers)) as bar:
        bar.advance(len(numbers) - len(missing))
        results = pool.map(pretrain_block, jobs, gpus=gpus, label="encoders", quiet=True)
        for trained, encoders in zip(blocks, results, strict=True):
            store.write(trained.tolist(), encoders)
            bar.advance(len(trained))
