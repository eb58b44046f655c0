"""Stage 1 as a whole: what a store lacks is trained, block by block, and nothing else."""

from dataclasses import replace

import pytest
import torch

from dpray.errors import BadInput
from dpray.memory import free_memory
from dpray.pool import SerialPool
from dpray.stacks.blocks import block_size, encoder_bytes
from dpray.stacks.encoders import EncoderJobs, pretrain
from dpray.stacks.pretrain import EncoderJob, pretrain_block
from dpray.stacks.recipes import conv_recipe
from dpray.stacks.store import EncoderStore


class CountingPool(SerialPool):
    """Remembers the subsets it was given, and can be made to stop."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.trained, self.stop_after, self.total = [], stop_after, None

    def map(self, fn, jobs, **settings):
        self.total = len(jobs)
        for place, job in enumerate(jobs):
            if place == self.stop_after:
                raise KeyboardInterrupt
            self.trained.append(job.numbers)
            yield fn(job, None)


def test_the_store_is_filled_block_by_block_the_largest_subsets_first(subsets, settings, tmp_path):
    store, pool = EncoderStore(tmp_path / "e"), CountingPool()
    pretrain(subsets, store, pool, settings, numbers=subsets.present, records=4, block=2)
    assert pool.total == 3
    assert [k for numbers in pool.trained for k in numbers] == [5, 1, 4, 0, 2]
    assert store.present() == {0, 1, 2, 4, 5}
    numbers = torch.tensor([1])
    alone = pretrain_block(EncoderJob((1,), subsets.batch(numbers), settings))
    for name, value in store.read([1]).items():
        assert torch.allclose(value, alone[name], atol=1e-5)


def test_a_stopped_run_trains_only_what_is_missing(subsets, settings, tmp_path):
    pool = CountingPool(stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        pretrain(
            subsets,
            EncoderStore(tmp_path / "e"),
            pool,
            settings,
            numbers=subsets.present,
            records=4,
            block=2,
        )
    again, store = CountingPool(), EncoderStore(tmp_path / "e")
    pretrain(subsets, store, again, settings, numbers=subsets.present, records=4, block=2)
    done = [k for numbers in pool.trained + again.trained for k in numbers]
    assert sorted(done) == [0, 1, 2, 4, 5]
    idle = CountingPool()
    pretrain(subsets, store, idle, settings, numbers=subsets.present, records=4, block=2)
    assert idle.trained == []


def test_encoders_of_a_damaged_file_are_trained_again(subsets, settings, tmp_path):
    pretrain(
        subsets,
        EncoderStore(tmp_path / "e"),
        SerialPool(),
        settings,
        numbers=subsets.present,
        records=4,
        block=2,
    )
    before = EncoderStore(tmp_path / "e").read([0, 1, 2, 4, 5])
    damaged = next((tmp_path / "e").glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    store, pool = EncoderStore(tmp_path / "e", say=lambda text: None), CountingPool()
    pretrain(subsets, store, pool, settings, numbers=subsets.present, records=4, block=2)
    assert 1 <= sum(map(len, pool.trained)) <= 2
    for name, value in store.read([0, 1, 2, 4, 5]).items():
        assert torch.allclose(value, before[name], atol=1e-5)


def test_with_a_public_list_an_empty_subset_looks_like_any_other(subsets, settings, tmp_path):
    store, bars = EncoderStore(tmp_path / "e"), []

    class Bar:
        def __init__(self, label, total):
            bars.append([label, total, 0])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def advance(self, count=1):
            bars[0][2] += count

    pretrain(
        subsets, store, SerialPool(), settings, numbers=torch.arange(6), records=4, progress=Bar
    )
    assert bars == [["encoders", 6, 6]]
    assert store.present() == set(range(6))


def test_jobs_are_made_when_they_are_taken_and_hold_their_own_records(subsets, settings):
    jobs = EncoderJobs(subsets, (torch.tensor([5]), torch.tensor([0, 2])), settings)
    assert len(jobs) == 2
    _, last = jobs
    assert last.numbers == (0, 2)
    assert last.batch.pixels.shape[:2] == (2, 3)


def test_a_block_fits_the_memory_and_is_no_larger_than_is_fast():
    megabyte = 2**20
    assert block_size(megabyte, 1000 * megabyte, 2) == 32
    assert block_size(megabyte, 40 * megabyte, 2) == 10
    assert block_size(megabyte, 1000 * megabyte, 2, num_encoders=9) == 5
    assert block_size(megabyte, 1000 * megabyte, 2, fastest=4) == 4
    with pytest.raises(BadInput, match="fewer workers"):
        block_size(30 * megabyte, 40 * megabyte, 2)


def test_memory_of_an_encoder_counts_weights_moments_and_activations(settings):
    parameters = sum(p.numel() for p in settings.recipe.build(0).parameters())
    assert encoder_bytes(settings, 6) > 16 * parameters
    conv = replace(settings, recipe=conv_recipe((1, 28, 28), 10, 8, (32, 16)))
    activations = 4 * 6 * 16 * 28 * 28  # at least the largest maps of six records
    assert encoder_bytes(conv, 6) > 16 * 30_000 + activations
    assert free_memory() > 2**20
