"""The noisy vector of a whole sample: its bound, its noise, and who is drawn into it."""

import math

import pytest
import torch

from dpray.data.records import Images
from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.groups import noisy_group_vector
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients, PoissonGroups

CLIP = 0.7


def records(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 1, 2, 2, generator=rng)
    return Images(pixels, torch.zeros(count, dtype=torch.int64), torch.arange(count))


def ask(vector, images, *, noise=0.0, rate=0.5, step=0, steps=1, dimension=4, key=1):
    query = PoissonGroups(
        name="group", sample_rate=rate, steps=steps, clip_norm=CLIP, noise_multiplier=noise
    )
    paid = PaidQuery(query, entry=0)
    settings = {"dimension": dimension, "paid": paid, "key": RunKey.insecure(key)}
    return noisy_group_vector(vector, images, step, **settings)


def jumpy(drawn):
    """A function that one record can turn round altogether."""
    return drawn.pixels.flatten(1).prod(0).sign() * 1e3 * len(drawn)


def test_a_record_moves_the_clipped_vector_by_twice_the_clip_at_most():
    query = PoissonGroups(sample_rate=0.5, steps=1, clip_norm=CLIP, noise_multiplier=1.0)
    moved, unbounded = [], []
    for seed in range(40):
        whole = records(8, seed)
        less = whole[slice(1, None)]
        clipped = [ask(jumpy, images, rate=1.0) for images in (whole, less)]
        moved.append(float((clipped[0] - clipped[1]).norm()))
        unbounded.append(float((jumpy(whole) - jumpy(less)).norm()))
    assert max(moved) <= query.sensitivity * (1 + 1e-6)
    assert max(moved) > 1.05 * CLIP  # the clip alone would not have been enough
    assert min(unbounded) > query.sensitivity  # nor would no clip at all


def spread(noise):
    flat = ask(lambda drawn: torch.zeros(20_000), records(4), noise=noise, dimension=20_000)
    return float(flat.std())


def test_the_noise_is_in_units_of_twice_the_clip():
    right, half = 1.5 * 2 * CLIP, 1.5 * CLIP
    error = 5 / math.sqrt(2 * 20_000)
    assert abs(spread(1.5) / right - 1) < error
    assert abs(spread(1.5) / half - 1) > error


def test_a_sample_of_nobody_releases_noise():
    def refuse(drawn):
        raise AssertionError("asked about nobody")

    assert ask(refuse, records(0), noise=1.0).norm() > 0
    assert (ask(refuse, records(0)) == 0).all()


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_vector_that_is_not_finite_counts_as_zero(bad):
    found = ask(lambda drawn: torch.tensor([1.0, bad, 0.0, 2.0]), records(8))
    assert (found == 0).all()


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(BadInput, match="must hold 4 numbers"):
        ask(lambda drawn: torch.zeros(len(drawn) + 4), records(8))


def test_a_record_is_drawn_on_its_own_and_afresh_in_every_step():
    seen = []
    for step in range(300):
        ask(lambda d: (seen.append(d.ids), torch.zeros(4))[1], records(20), step=step, steps=300)
    counts = torch.cat(seen).bincount(minlength=20)
    assert (counts - 150).abs().max() < 5 * math.sqrt(75)
    assert len({len(ids) for ids in seen}) > 5  # a fixed number would be another sampler


def test_records_come_in_the_order_of_their_ids_wherever_they_are_kept():
    seen = []
    ask(lambda d: (seen.append(d.ids.tolist()), torch.zeros(4))[1], records(20)[torch.randperm(20)])
    assert seen[0] == sorted(seen[0])


def test_a_step_that_was_not_paid_for_is_refused():
    with pytest.raises(BudgetExceeded, match="not paid for"):
        ask(jumpy, records(4), step=1)


def test_it_costs_as_much_as_gradients_whose_noise_is_in_units_of_their_bound():
    alike = {"sample_rate": 0.01, "steps": 100, "noise_multiplier": 1.1}
    gradients = PoissonGradients(clip_norm=2 * CLIP, expected_batch_size=1.0, **alike)
    groups = PoissonGroups(clip_norm=CLIP, **alike)
    assert groups.event == gradients.event
    assert groups.sensitivity == gradients.bound
