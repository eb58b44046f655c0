"""Splits and partitions depend on the salt and the record's own id, and on nothing else."""

from __future__ import annotations

import pytest
import torch

from dpray.data.records import Images
from dpray.data.splits import is_held_out, keyed_fraction, partition, split
from dpray.errors import BadInput

IDS = torch.arange(20_000) * 7919 - 3


def test_removing_a_record_moves_no_other() -> None:
    without = torch.cat([IDS[:500], IDS[501:]])
    for function in (
        lambda ids: keyed_fraction(ids, "s"),
        lambda ids: is_held_out(ids, 0.1, "s"),
        lambda ids: partition(ids, 10, "s"),
    ):
        before = function(IDS)
        assert torch.equal(torch.cat([before[:500], before[501:]]), function(without))


def test_fractions_are_uniform_in_the_unit_interval() -> None:
    fractions = keyed_fraction(IDS, "s")
    assert fractions.min() >= 0
    assert fractions.max() < 1
    # 20,000 draws: ten equal bins of 2,000 each, standard deviation 42.
    assert torch.histc(fractions.float(), 10, 0, 1).sub(2000).abs().max() < 5 * 42


def test_another_salt_is_another_split() -> None:
    agree = (is_held_out(IDS, 0.5, "a") == is_held_out(IDS, 0.5, "b")).double().mean()
    assert abs(agree - 0.5) < 0.02


def test_the_hash_is_fixed_for_ever() -> None:
    # AES-256 of (id, 0) under SHA-256("salt"): a change here would move records between parts.
    found = keyed_fraction(torch.tensor([0, 1, -1]), "salt").tolist()
    assert found == [0.16944639263742867, 0.835580381194247, 0.17687889270751167]


def test_split_gives_every_record_to_exactly_one_side() -> None:
    images = Images(torch.zeros(len(IDS), 1, 1, 1), torch.zeros(len(IDS)).long(), IDS)
    kept, held_out = split(images, 0.1, "s")
    assert abs(len(held_out) - 2000) < 5 * 43
    assert torch.equal(torch.cat([kept.ids, held_out.ids]).sort().values, IDS.sort().values)


def test_every_part_gets_its_share() -> None:
    counts = partition(IDS, 7, "s").bincount(minlength=7)
    assert len(counts) == 7
    assert (counts - 20_000 / 7).abs().max() < 5 * 50


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_a_hold_out_that_is_no_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(BadInput, match="not a fraction"):
        is_held_out(IDS, fraction, "s")
