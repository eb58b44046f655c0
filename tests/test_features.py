"""Features of private records: computed once, kept for their owner, the same for any workers."""

import stat
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpray.data.datasets import load
from dpray.data.folders import home
from dpray.data.shards import BLOCK_SIZE, shard
from dpray.features import private_features
from dpray.pool import SerialPool
from dpray.world import World


class CountedDouble(nn.Module):
    calls = 0

    def forward(self, images):
        type(self).calls += 1
        return images * 2


def test_they_are_computed_once_and_only_the_owner_may_read_them(tiny_data, make_run):
    CountedDouble.calls = 0
    first = private_features(tiny_data, CountedDouble(), "double", make_run())
    calls = CountedDouble.calls
    again = private_features(tiny_data, CountedDouble(), "double", make_run())
    assert CountedDouble.calls == calls > 0
    assert torch.equal(first, again)
    assert torch.allclose(first.float(), tiny_data.private.pixels * 2, atol=1e-3)
    files = list((home() / "private" / "features").rglob("*.safetensors"))
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700


def test_a_damaged_block_is_computed_again(tiny_data, make_run):
    first = private_features(tiny_data, CountedDouble(), "double", make_run())
    path = next((home() / "private" / "features").rglob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-10])
    assert torch.equal(private_features(tiny_data, CountedDouble(), "double", make_run()), first)


def test_other_data_get_other_files(tiny_data, make_run):
    private_features(tiny_data, CountedDouble(), "double", make_run())
    other = replace(tiny_data, fingerprint="another")
    private_features(other, CountedDouble(), "double", make_run())
    assert len(list((home() / "private" / "features").iterdir())) == 2


def test_shards_together_have_the_features_of_the_whole(make_run):
    data = load("digits").train
    whole = private_features(data, CountedDouble(), "double", make_run())
    CountedDouble.calls = 0
    for rank in range(2):
        run = make_run()
        run.world = World(rank, 2)
        mine = shard(data, rank, 2)
        rows = torch.isin(data.private.ids, mine.private.ids)
        assert torch.equal(private_features(mine, CountedDouble(), "double", run), whole[rows])
    assert CountedDouble.calls == 0


class StoppedPool(SerialPool):
    """Counts its jobs, and can be made to stop."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.done, self.stop_after = 0, stop_after

    def map(self, fn, jobs, **settings):
        self.total = len(jobs)
        for job in jobs:
            if self.done == self.stop_after:
                raise KeyboardInterrupt
            self.done += 1
            yield fn(job, settings["shared"])


def test_fanned_out_they_are_the_same_and_go_on_where_they_stopped(make_run):
    data = load("digits").train
    serial = private_features(data, CountedDouble(), "double", make_run())
    run = make_run()
    run.pool = StoppedPool(stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        private_features(data, CountedDouble(), "twice", run, fan_out=True)
    run.pool = StoppedPool()
    again = private_features(data, CountedDouble(), "twice", run, fan_out=True)
    assert torch.equal(again, serial)
    assert run.pool.done == run.pool.total == -(-data.num_records // BLOCK_SIZE) - 1


def test_two_ranks_fan_out_each_their_own_blocks(make_run):
    data = load("digits").train
    whole = private_features(data, CountedDouble(), "double", make_run())
    jobs = 0
    for rank in range(2):
        run = make_run()
        run.world, run.pool = World(rank, 2), StoppedPool()
        mine = shard(data, rank, 2)
        rows = torch.isin(data.private.ids, mine.private.ids)
        found = private_features(mine, CountedDouble(), "twice", run, fan_out=True)
        assert torch.equal(found, whole[rows])
        jobs += run.pool.done
    assert jobs == -(-data.num_records // BLOCK_SIZE)
