"""Which worker holds which records: blocks of consecutive rows, dealt out in turn.

Blocks are counted over the whole dataset, so what is cached for block b stays valid when the
number of workers changes. Shards only spread work: no privacy claim rests on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from dpray.data.records import Images, TrainingData
from dpray.errors import BadInput

BLOCK_SIZE = 1000


def block_numbers(
    num_records: int, rank: int = 0, size: int = 1, block_size: int = BLOCK_SIZE
) -> list[int]:
    """The blocks of worker `rank` of `size`, in rising order."""
    if not 0 <= rank < size:
        raise BadInput(f"no worker {rank} among {size}; ranks go from 0 to {size - 1}")
    if block_size < 1:
        raise BadInput(f"a block of {block_size} records is too small; at least 1 is needed")
    num_blocks = -(-num_records // block_size)
    return list(range(rank, num_blocks, size))


def shard(data: TrainingData, rank: int, size: int, block_size: int = BLOCK_SIZE) -> TrainingData:
    """Worker `rank`'s share. `num_records` and the fingerprint stay those of the whole."""
    _refuse_a_shard(data)
    numbers = block_numbers(data.num_records, rank, size, block_size)
    if size == 1:
        return data
    mine = torch.zeros(data.num_records, dtype=torch.bool)
    for number in numbers:
        mine[number * block_size : (number + 1) * block_size] = True
    return replace(data, private=data.private[mine])


def blocks(
    data: TrainingData, rank: int = 0, size: int = 1, block_size: int = BLOCK_SIZE
) -> Iterator[tuple[int, Images]]:
    """(block number, its records) of a share that `shard` made with the same arguments."""
    # Only the last block of the whole may be short, and it is the last one of its share too.
    for place, number in enumerate(block_numbers(data.num_records, rank, size, block_size)):
        yield number, data.private[slice(place * block_size, (place + 1) * block_size)]


def _refuse_a_shard(data: TrainingData) -> None:
    if len(data.private) != data.num_records:
        raise BadInput(
            f"{data.name} is already a share ({len(data.private)} of {data.num_records} "
            "records); only the whole can be shared out"
        )
