"""Shards: blocks dealt out in turn, the whole kept in number and fingerprint."""

from __future__ import annotations

import pytest
import torch

from dpray.data.datasets import block_numbers, blocks, shard
from dpray.data.records import Images, TrainingData
from dpray.errors import BadInput


def whole(num_records: int) -> TrainingData:
    ids = torch.arange(num_records)
    images = Images(ids.float().view(-1, 1, 1, 1), ids % 2, ids)
    return TrainingData("numbers", images, num_records, ("even", "odd"), "f00d")


def test_shards_cover_every_record_once() -> None:
    data = whole(2345)
    shares = [shard(data, rank, 3, block_size=100) for rank in range(3)]
    ids = torch.cat([share.private.ids for share in shares])
    assert torch.equal(ids.sort().values, data.private.ids)
    assert {(share.num_records, share.fingerprint) for share in shares} == {(2345, "f00d")}


def test_a_worker_holds_every_nth_block() -> None:
    assert block_numbers(2345, rank=1, size=3, block_size=500) == [1, 4]
    assert shard(whole(2345), 1, 3, 500).private.ids.tolist() == [
        *range(500, 1000),
        *range(2000, 2345),
    ]


def test_blocks_of_a_share_keep_their_number_in_the_whole() -> None:
    share = shard(whole(2345), 1, 3, 500)
    assert [
        (number, block.ids[0].item(), len(block)) for number, block in blocks(share, 1, 3, 500)
    ] == [
        (1, 500, 500),
        (4, 2000, 345),
    ]


def test_a_worker_beyond_the_last_block_holds_nothing() -> None:
    share = shard(whole(10), 1, 2)
    assert len(share.private) == 0
    assert share.shape == (1, 1, 1)


def test_a_share_cannot_be_shared_out_again() -> None:
    with pytest.raises(BadInput, match="already a share"):
        shard(shard(whole(10), 0, 2, 1), 0, 2, 1)


def test_a_rank_out_of_range_is_refused() -> None:
    with pytest.raises(BadInput, match="no worker 2 among 2"):
        block_numbers(10, rank=2, size=2)
