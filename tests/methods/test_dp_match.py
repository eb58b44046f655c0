"""DP-Match: what is released, what it costs, what one record can move, and where images go."""

import dataclasses
import math

import pytest
import torch

from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.matching import means
from dpray.methods import dp_match
from dpray.methods.dp_match import DPMatch

TINY = {"spc": 3, "networks": 2, "width": 4, "dimensions": 6, "radius": 1.0, "warp": 1.0}


def test_the_parts_share_the_budget_as_one_gaussian(tiny_data, make_run):
    run = make_run(epsilon=1.0)
    DPMatch(**TINY, steps=1).fit(tiny_data, run)
    shares = [entry.event.noise_multiplier**-2 for entry in run.ledger.entries]
    assert 1 / math.sqrt(sum(shares)) == pytest.approx(3.730632, abs=1e-4)
    assert sum(shares[:4]) / sum(shares) == pytest.approx(DPMatch().moments_share)


def test_every_part_is_paid_before_the_first_is_read(tiny_data, make_run, monkeypatch):
    run = make_run(epsilon=1.0)
    paid_when_read = []
    honest = run.once

    def watch(name, release):
        paid_when_read.append(len(run.ledger.entries))
        return honest(name, release)

    monkeypatch.setattr(run, "once", watch)
    DPMatch(**TINY, steps=1).fit(tiny_data, run)
    assert paid_when_read == [5] * 5


@pytest.mark.parametrize("loudness", [1.0, 1e6])
def test_one_record_moves_the_features_by_what_was_paid_for(
    loudness, tiny_data, make_run, monkeypatch
):
    """Also where its pixels lie far outside of an image: networks must not make it louder."""
    raw, bounds = [], []
    honest = means.noisy_sum

    def look(raw_sum, *, paid, **rest):
        raw.append(raw_sum.clone())
        bounds.append(paid.query.sensitivity)
        return honest(raw_sum, paid=paid, **rest)

    monkeypatch.setattr(means, "noisy_sum", look)
    # Centres come of released draws, which differ between two runs: here they are the same.
    monkeypatch.setattr("dpray.methods.dp_match.RandomFeatures.centre_on", lambda *_: None)
    centres = 2 * torch.rand(3, 2, 6, generator=torch.Generator().manual_seed(1)).double() - 1
    monkeypatch.setattr(dp_match, "cell_centres", lambda *_: centres)
    # As are the directions in which a record's cell is looked for.
    directions = torch.eye(256, 6, dtype=torch.float64)
    monkeypatch.setattr("dpray.moments.subspace._leading", lambda *_: directions)
    private = tiny_data.private
    pixels = private.pixels.clone()
    pixels[0] *= loudness
    for rows in (slice(0, None), slice(1, None)):
        some = Images(pixels[rows], private.labels[rows], private.ids[rows])
        data = dataclasses.replace(tiny_data, private=some)
        DPMatch(**TINY, steps=1, cells=2).fit(data, make_run())
    moved = (raw[0] - raw[1]).norm().item()
    assert moved <= bounds[0] * (1 + 1e-6)
    assert moved > 0.99 * bounds[0]  # the bound is that of a record, and not a looser one


def test_a_record_that_is_not_a_number_adds_its_count_alone(tiny_data, make_run, monkeypatch):
    raw = []
    honest = means.noisy_sum

    def look(raw_sum, **rest):
        raw.append(raw_sum.clone())
        return honest(raw_sum, **rest)

    monkeypatch.setattr(means, "noisy_sum", look)
    private = tiny_data.private
    pixels = private.pixels.clone()
    pixels[0] = math.nan
    broken = dataclasses.replace(tiny_data, private=dataclasses.replace(private, pixels=pixels))
    DPMatch(**TINY, steps=1).fit(broken, make_run())
    assert raw[0].isfinite().all()
    assert raw[0][:, -1].sum() == pytest.approx(0.2 * len(private))


def test_images_move_towards_the_released_means(tiny_data, make_run, monkeypatch):
    distances = []
    honest = dp_match.distance

    def watch(*words):
        distances.append(honest(*words))
        return distances[-1]

    monkeypatch.setattr(dp_match, "distance", watch)
    DPMatch(**TINY, steps=60).fit(tiny_data, make_run(noise_multiplier=0.5))
    first, last = (torch.stack(some).mean() for some in (distances[:10], distances[-10:]))
    assert last < 0.7 * first


@pytest.mark.parametrize(("noise", "cells"), [(1e-3, 3), (4.0, 1)])
def test_a_class_has_as_many_cells_as_the_noise_allows(noise, cells, tiny_data, make_run):
    run = make_run(noise_multiplier=noise)
    method = DPMatch(**TINY, steps=1)
    *_, features = method._queries(run)
    assert method._num_cells(tiny_data, features) == cells


def test_images_of_cells_come_closer_to_records_than_those_of_classes(tiny_data, make_run):
    """What a class with two looks has in common is neither of them."""
    private = tiny_data.private
    pixels = torch.zeros_like(private.pixels)
    places = torch.arange(len(pixels))
    pixels[places, 0, (private.labels + 4 * (places % 2)).long()] = 1.0  # a row of the image
    two_looks = dataclasses.replace(tiny_data, private=dataclasses.replace(private, pixels=pixels))

    def away(cells):
        method = DPMatch(**{**TINY, "spc": 4, "warp": 0.0}, steps=150, cells=cells, blur=0.0)
        images = method.fit(two_looks, make_run(noise_multiplier=1e-3)).module.images
        return torch.cdist(images.flatten(1), pixels.flatten(1)).min(1).values.mean()

    assert away(2) < 0.9 * away(1)


def test_without_warping_the_images_themselves_are_released(tiny_data, make_run):
    release = DPMatch(**{**TINY, "warp": 0.0}, steps=1).fit(tiny_data, make_run())
    assert release.model == "image-set"
    drawn = release.sample(torch.tensor([0, 1, 2]), torch.Generator().manual_seed(0))
    known = release.module.images.flatten(1)
    assert (torch.cdist(drawn.flatten(1), known).min(1).values < 1e-5).all()


def test_a_stopped_fit_goes_on_to_the_same_images(tiny_data, make_run, monkeypatch):
    whole = DPMatch(**TINY, steps=6).fit(tiny_data, make_run(key=5))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped")
    honest = run.checkpoints.save

    def stop_after_four(stage, checkpoint):
        honest(stage, checkpoint)
        if stage == "images" and checkpoint.step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.checkpoints, "save", stop_after_four)
    with pytest.raises(KeyboardInterrupt):
        DPMatch(**TINY, steps=6).fit(tiny_data, run)
    resumed = make_run(key=5, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = DPMatch(**TINY, steps=6).fit(tiny_data, resumed)
    assert len(resumed.ledger.entries) == 5
    assert torch.equal(whole.module.images, release.module.images)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spc": 0}, "spc 0 must be"),
        ({"networks": 0}, "networks 0 must be"),
        ({"steps": 0}, "steps 0 must be"),
        ({"lr": 0.0}, "lr 0 must be"),
        ({"blur": 9.0}, "blur 9 must be from 0"),
        ({"warp": -1.0}, "warp -1 must be"),
        ({"moments_share": 1.0}, "moments_share 1 "),
        ({"cells": 0}, "cells 0 must be"),
        ({"spc": 5, "cells": 6}, "cells 6 must be from 1 to spc, 5"),
        ({"dimensions": 1000}, "dimensions 1000 must be"),
        ({"networks": 900, "width": 900}, "take fewer or narrower"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words, tiny_data):
    with pytest.raises(BadInput, match=words):
        DPMatch(**settings).check(tiny_data)
