"""Features of private records: computed once, kept for their owner, the same for any workers."""

import stat
from dataclasses import replace

import torch
from torch import nn

from dpray.data.folders import home
from dpray.data.shards import shard
from dpray.features import private_features
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
    from dpray.data.datasets import load

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
