"""How far images may be bent: what asking for it costs, what a record moves, and what is found."""

import dataclasses
import math

import pytest
import torch

from dpray import bending
from dpray.data.records import Images
from dpray.methods import dp_match
from dpray.methods.dp_match import DPMatch
from dpray.models.warped_sets import WarpedSet, warped

TINY = {"spc": 3, "networks": 2, "width": 4, "dimensions": 6, "radius": 1.0, "steps": 2}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(bending, "_STEPS", 20)


def test_the_draws_of_a_network_are_bent_by_the_strength_it_is_asked_about(tiny_data, monkeypatch):
    """Records that are bent copies of the images are known better to one that was taught them."""
    monkeypatch.setattr(bending, "_STEPS", 150)
    private = tiny_data.private
    images, labels = private.pixels[:40], private.labels[:40]
    rows = torch.arange(600) % 40
    bent = warped(images[rows], 2.0, torch.Generator().manual_seed(9))
    asked = bending.Asked(Images(bent, labels[rows], torch.arange(600)), 3, seed=0)
    much, hardly = (bending.raw_correct(a_set(images, labels, w), asked) for w in (2.0, 0.01))
    assert much > hardly


def a_set(images, labels, warp):
    made = WarpedSet((1, 16, 16), len(images), warp)
    made.images.copy_(images)
    made.labels.copy_(labels)
    return made


def without_the_first(data):
    private = data.private
    rest = Images(private.pixels[1:], private.labels[1:], private.ids[1:])
    return dataclasses.replace(data, private=rest)


def test_the_strength_is_asked_for_within_the_same_budget(tiny_data, make_run):
    run = make_run(epsilon=1.0)
    release = DPMatch(**TINY).fit(tiny_data, run)
    shares = [entry.event.noise_multiplier**-2 for entry in run.ledger.entries]
    assert len(shares) == 6
    assert 1 / math.sqrt(sum(shares)) == pytest.approx(3.730632, abs=1e-4)
    assert release.arguments["warp"] in dp_match._STRENGTHS


def test_a_strength_that_is_given_is_not_asked_for(tiny_data, make_run):
    run = make_run(epsilon=1.0)
    assert DPMatch(**TINY, warp=0.7).fit(tiny_data, run).arguments["warp"] == 0.7
    assert len(run.ledger.entries) == 5


def test_all_is_paid_before_a_record_is_counted(tiny_data, make_run, monkeypatch):
    run, paid_when_counted = make_run(), []
    honest = bending.raw_correct

    def watch(generator, asked):
        paid_when_counted.append(len(run.ledger.entries))
        return honest(generator, asked)

    monkeypatch.setattr(bending, "raw_correct", watch)
    DPMatch(**TINY).fit(tiny_data, run)
    assert paid_when_counted == [6] * len(dp_match._STRENGTHS)


def test_one_record_moves_the_counts_by_no_more_than_was_paid_for(tiny_data):
    """On the same images, which are public: a record is counted at every strength, or at none."""
    private = tiny_data.private
    images, labels = private.pixels[1:40], private.labels[1:40]
    sets = [a_set(images, labels, strength) for strength in (0.4, 1.0, 2.0)]

    def counts(data):
        asked = bending.Asked(data.private, data.num_classes, seed=0)
        return torch.tensor([bending.raw_correct(one, asked) for one in sets]).double()

    moved = (counts(tiny_data) - counts(without_the_first(tiny_data))).abs()
    assert moved.max() <= 1
    assert moved.norm() <= bending.sensitivity(3)
    assert pytest.approx(torch.ones(3).norm().item()) == bending.sensitivity(3)


@pytest.mark.parametrize("best", range(3))
def test_the_strength_with_the_most_records_is_found(best, tiny_data, make_run, monkeypatch):
    strength = dp_match._STRENGTHS[best]
    monkeypatch.setattr(bending, "raw_correct", lambda made, _: 500 * (made.warp == strength))
    release = DPMatch(**TINY).fit(tiny_data, make_run(noise_multiplier=1.0))
    assert release.arguments["warp"] == strength


def test_noise_decides_where_it_is_louder_than_the_counts(tiny_data, make_run, monkeypatch):
    """Not by the raw counts: then the first strength would always be found."""
    monkeypatch.setattr(bending, "raw_correct", lambda made, _: int(made.warp < 0.5))
    found = {
        DPMatch(**TINY)
        .fit(tiny_data, make_run(noise_multiplier=50.0, key=key, folder=str(key)))
        .arguments["warp"]
        for key in range(12)
    }
    assert len(found) > 1


def test_a_worker_without_records_counts_nothing(tiny_data):
    none = Images(*(part[:0] for part in dataclasses.astuple(tiny_data.private)[:3]))
    private = tiny_data.private
    asked = bending.Asked(none, 3, seed=0)
    assert bending.raw_correct(a_set(private.pixels[:9], private.labels[:9], 1.0), asked) == 0
