"""What draws of subsets cost, and what a query is charged as: reference/privacy.md 3 and 4.4."""

import dataclasses
import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.stats import binom

from dpray.errors import BadInput, LedgerDamaged
from dpray.privacy.accounting import Adjacency, Budget, cost_of, delta_of, gaussian_delta
from dpray.privacy.events import describe, event_from_json, event_to_json, noise_multiplier_of
from dpray.privacy.planning import calibrate
from dpray.privacy.subset_queries import SubsetSums
from dpray.privacy.subsets import SubsetsDpEvent, _poisson_profile

SAMPLINGS = ("poisson", "one-of-k", "every", "revealed")


def drawn(sampling: str, rate: float, noise: float, steps: int, vectors: int = 1) -> dp.DpEvent:
    one = SubsetsDpEvent(
        sampling=sampling,
        sample_rate=1.0 if sampling == "every" else rate,
        noise_multiplier=noise,
        vectors_per_draw=vectors,
    )
    return dp.SelfComposedDpEvent(one, steps)


# K, T, sigma, m, tight subset bound, Poisson, library's Renyi bound, draws revealed
@pytest.mark.parametrize(
    ("subsets", "steps", "noise", "vectors", "tight", "poisson", "renyi", "revealed"),
    [
        (10, 50, 4, 1, 1.7615, 1.3558, 3.6803, 6.4873),
        (100, 500, 2, 1, 1.5415, 0.8243, 2.5389, 16.5275),
        (100, 500, 4, 1, 0.4936, 0.3848, 1.0011, 6.6288),
        (100, 2000, 4, 1, 1.0491, 0.8198, 2.1005, 13.1732),
        (50, 1000, 6, 1, 0.8978, 0.7684, 1.8937, 7.8496),
        (100, 500, 4, 4, 1.5415, 0.8243, 2.5389, 16.5275),
    ],
)
def test_drawing_subsets_costs_what_the_reference_says(
    subsets, steps, noise, vectors, tight, poisson, renyi, revealed
):
    found = {
        sampling: cost_of([drawn(sampling, 1 / subsets, noise, steps, vectors)], 1e-5)
        for sampling in ("poisson", "one-of-k", "revealed")
    }
    hidden = found["one-of-k"]
    assert hidden.pld == pytest.approx(tight, abs=3e-4)
    assert hidden.rdp == pytest.approx(renyi, abs=3e-4)
    assert found["poisson"].epsilon == pytest.approx(poisson, abs=3e-4)
    assert found["revealed"].epsilon == pytest.approx(revealed, abs=3e-4)
    assert found["poisson"].rdp is None and found["revealed"].rdp is None
    assert found["poisson"].epsilon <= hidden.epsilon == hidden.pld <= hidden.rdp
    every = cost_of([drawn("every", 1.0, noise, steps, vectors)], 1e-5, coarse=True)
    assert hidden.epsilon <= found["revealed"].epsilon <= every.epsilon


# T, sigma, tight, Poisson, revealed; K = 2500
@pytest.mark.parametrize(
    ("steps", "noise", "tight", "poisson", "revealed"),
    [
        (20_000, 1.07, 2.7047, 0.3879, 53.78),
        (100_000, 0.7, 35.3403, 1.9631, 315.25),
        (100_000, 20.0, 0.0372, 0.0355, 2.724),
    ],
)
def test_many_subsets_and_steps_cost_what_the_reference_says(
    steps, noise, tight, poisson, revealed
):
    known = {"one-of-k": tight, "poisson": poisson, "revealed": revealed}
    for sampling, epsilon in known.items():
        found = cost_of([drawn(sampling, 1 / 2500, noise, steps)], 1e-5).epsilon
        assert found == pytest.approx(epsilon, rel=1e-4, abs=6e-5 if epsilon < 100 else 6e-3)


@pytest.mark.parametrize(
    ("noise", "tight", "library"), [(1.1, 8.9142, 13.6148), (2, 1.6975, 2.7033)]
)
def test_batches_of_a_fixed_size_cost_far_more_than_poisson_ones(noise, tight, library):
    rate, steps = 256 / 60000, 3515
    ours = cost_of([drawn("one-of-k", rate, noise, steps)], 1e-5)
    assert ours.pld == pytest.approx(tight, abs=5e-3)
    fixed = dp.SampledWithoutReplacementDpEvent(60000, 256, dp.GaussianDpEvent(noise))
    cost = cost_of([dp.SelfComposedDpEvent(fixed, steps)], 1e-5, Adjacency.REPLACE)
    assert cost.pld is None
    assert cost.rdp == pytest.approx(library, abs=1e-3)
    assert ours.rdp == pytest.approx(cost.rdp, rel=1e-9)
    assert ours.epsilon < cost.rdp


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_cost_is_the_same_under_both_adjacencies(sampling):
    event = drawn(sampling, 0.1, 5.0, 4)
    assert cost_of([event], 1e-5) == cost_of([event], 1e-5, Adjacency.REPLACE)
    doubled = cost_of([dp.GaussianDpEvent(3.0)], 1e-5, Adjacency.REPLACE)
    assert doubled.epsilon > cost_of([dp.GaussianDpEvent(3.0)], 1e-5).epsilon
    epsilons = (0.0, 0.5, 2.0)
    assert delta_of([event], epsilons) == delta_of([event], epsilons, Adjacency.REPLACE)


@pytest.mark.parametrize(("noise", "rate"), [(0.4, 1 / 2500), (1.0, 0.1), (4.0, 0.5), (50.0, 0.01)])
def test_the_poisson_profile_is_the_librarys(noise, rate):
    library = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=AdjacencyType.REPLACE)
    epsilons = np.concatenate([np.linspace(0, 1, 50), np.linspace(1, 40, 50)])
    theirs = library.get_delta_for_epsilon(epsilons)
    assert np.allclose(_poisson_profile(epsilons, rate, 1 / noise), theirs, rtol=1e-9, atol=1e-16)


def test_poisson_subsets_cost_what_the_library_charges_for_replace_one():
    theirs = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.5)), 300)
    epsilon = cost_of([theirs], 1e-5, Adjacency.REPLACE).epsilon
    ours = cost_of([drawn("poisson", 0.05, 3.0, 300, vectors=4)], 1e-5).epsilon
    assert ours == pytest.approx(epsilon, abs=1e-5)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.1, 4.0, 50), (0.01, 2.0, 500)])
def test_revealed_draws_cost_a_gaussian_of_as_many_steps_as_were_drawn(rate, noise, steps):
    times = np.arange(1, steps + 1)
    chance = binom.pmf(times, steps, rate)
    epsilons = (0.0, 0.5, 1.0, 3.0, 8.0)
    known = [
        sum(
            p * gaussian_delta(e, 2 * math.sqrt(n) / noise)
            for n, p in zip(times, chance, strict=True)
        )
        for e in epsilons
    ]
    assert delta_of([drawn("revealed", rate, noise, steps)], epsilons) == pytest.approx(
        known, abs=1e-6
    )
    assert delta_of([drawn("revealed", rate, noise * 1.02, steps)], epsilons) != pytest.approx(
        known, abs=1e-4
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_subset_beside_a_gaussian_is_one_gaussian(adjacency):
    # Shifts of 2/20 a step and of 1/8, which replace-one doubles.
    own = 1 if adjacency is Adjacency.ADD_REMOVE else 2
    shift = math.sqrt(30 * (2 / 20) ** 2 + (own / 8) ** 2)
    cost = cost_of([drawn("every", 1.0, 20.0, 30), dp.GaussianDpEvent(8.0)], 1e-5, adjacency)
    alone = cost_of([dp.GaussianDpEvent(1 / shift)], 1e-5)
    assert cost.exact == pytest.approx(alone.exact, rel=1e-9)
    assert cost.pld == pytest.approx(cost.exact, abs=1e-4)
    assert cost.rdp == pytest.approx(alone.rdp, rel=1e-9)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_composed_with_others_it_costs_more_than_each_alone(sampling, adjacency):
    ours = drawn(sampling, 0.1, 6.0, 100)
    gaussian = dp.GaussianDpEvent(4.0)
    poisson = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(4.0)), 50)
    for other in (gaussian, poisson):
        both = cost_of([ours, other], 1e-5, adjacency, coarse=True)
        parts = [cost_of([e], 1e-5, adjacency, coarse=True).epsilon for e in (ours, other)]
        assert max(parts) < both.epsilon < sum(parts)


def test_draws_of_subsets_and_a_poisson_sample_of_records_have_no_renyi_bound_together():
    records = dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(4.0))
    for adjacency in Adjacency:
        assert cost_of([drawn("one-of-k", 0.5, 8.0, 2), records], 1e-5, adjacency).rdp is None


def test_a_gaussian_beside_one_of_k_has_a_renyi_bound_that_knows_the_adjacency():
    both = [drawn("one-of-k", 0.1, 8.0, 50), dp.GaussianDpEvent(5.0)]
    near, far = cost_of(both, 1e-5), cost_of(both, 1e-5, Adjacency.REPLACE)
    assert near.pld < near.rdp < far.rdp
    halved = cost_of([both[0], dp.GaussianDpEvent(2.5)], 1e-5)
    assert far.rdp == pytest.approx(halved.rdp, rel=1e-9)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_hardly_any_noise_is_costed_at_once_and_costs_a_lot(sampling):
    cost = cost_of([drawn(sampling, 1 / 2500, 0.01, 20_000)], 1e-5, coarse=True)
    assert 1e5 < cost.epsilon < 1e9
    assert math.isinf(cost_of([drawn(sampling, 0.1, 1.0, 5), dp.NonPrivateDpEvent()], 1e-5).epsilon)


def test_a_subset_that_is_hardly_ever_drawn_costs_next_to_nothing():
    assert cost_of([drawn("revealed", 1e-7, 0.05, 1)], 1e-5).epsilon == 0.0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_event_survives_its_json(sampling):
    event = drawn(sampling, 1 / 3, 0.1 + 0.2, 7, vectors=2)
    assert event_from_json(event_to_json(event)) == event
    assert repr(event_from_json(event_to_json(event))) == repr(event)
    assert noise_multiplier_of(event) == 0.1 + 0.2
    assert describe(event).startswith("7 times (noisy sum of ")
    assert "2 vectors" in describe(event) and "0.3" in describe(event)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": "hidden"},
        {"sample_rate": 0.0},
        {"sample_rate": math.nan},
        {"sampling": "every"},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"vectors_per_draw": 0},
        {"vectors_per_draw": 1.5},
        {"vectors_per_draw": None},
    ],
)
def test_an_event_that_says_nonsense_is_refused(change):
    values = {
        "sampling": "poisson",
        "sample_rate": 0.1,
        "noise_multiplier": 1.0,
        "vectors_per_draw": 1,
    } | change
    with pytest.raises(BadInput):
        SubsetsDpEvent(**values)
    with pytest.raises(LedgerDamaged, match="cannot be read"):
        event_from_json({"type": "subsets", **values})


def test_how_many_vectors_a_draw_gives_away_must_be_said():
    with pytest.raises(TypeError, match="vectors_per_draw"):
        SubsetsDpEvent(sampling="poisson", sample_rate=0.1, noise_multiplier=1.0)
    value = event_to_json(drawn("poisson", 0.1, 1.0, 1))["event"]
    del value["vectors_per_draw"]
    with pytest.raises(LedgerDamaged, match="vectors_per_draw"):
        event_from_json(value)


def query(sampling: str = "poisson", **changes: Any) -> SubsetSums:
    per_step = {"poisson": 10.0, "one-of-k": 1, "all-subsets": 40}.get(sampling, 1)
    values: dict[str, Any] = {
        "num_subsets": 40,
        "sampling": sampling,
        "subsets_per_step": per_step,
        "steps": 20,
        "clip_norm": 0.5,
        "noise_multiplier": 1.3,
        "remembers_draws": False,
        "vectors_per_draw": 1,
    }
    return SubsetSums(**values | changes)


@pytest.mark.parametrize(
    ("sampling", "remembers", "charged", "rate"),
    [
        ("poisson", False, "poisson", 0.25),
        ("poisson", True, "revealed", 0.25),
        ("one-of-k", False, "one-of-k", 1 / 40),
        ("one-of-k", True, "revealed", 1 / 40),
        ("all-subsets", False, "every", 1.0),
        ("all-subsets", True, "every", 1.0),
    ],
)
def test_the_event_follows_from_the_draws_and_from_who_remembers_them(
    sampling, remembers, charged, rate
):
    asked = query(sampling, remembers_draws=remembers)
    event = asked.event
    assert isinstance(event, dp.SelfComposedDpEvent) and event.count == 20
    one = event.event
    assert (one.sampling, one.sample_rate, one.noise_multiplier) == (charged, rate, 1.3)
    assert one.vectors_per_draw == 1
    assert asked.sample_rate == asked.facts()["sample_rate"] == rate
    assert asked.expected_subsets == rate * 40
    assert asked.bound == 0.5


@pytest.mark.parametrize("sampling", ["poisson", "one-of-k"])
@pytest.mark.parametrize(
    "change",
    [{}, {"name": "other"}, {"steps": 1}, {"vectors_per_draw": 3}, {"noise_multiplier": 9.0}],
)
def test_a_query_that_remembers_its_draws_cannot_be_talked_out_of_it(sampling, change):
    asked = query(sampling, remembers_draws=True, **change)
    assert asked.event.event.sampling == "revealed"
    assert "taken to be known" in asked.facts()["sampling"]
    for not_an_answer in (None, 0, "no"):
        with pytest.raises(BadInput, match="remembers_draws"):
            dataclasses.replace(asked, remembers_draws=not_an_answer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.remembers_draws = False


def test_a_poisson_rate_of_one_hides_nobody_and_no_noise_is_not_private():
    assert query(subsets_per_step=40.0).event.event.sampling == "every"
    assert isinstance(query(noise_multiplier=0.0).event, dp.NonPrivateDpEvent)


@pytest.mark.parametrize("missing", ["remembers_draws", "vectors_per_draw"])
def test_what_the_cost_depends_on_has_no_default(missing):
    values = dataclasses.asdict(query())
    del values[missing]
    with pytest.raises(TypeError, match=missing):
        SubsetSums(**values)


@pytest.mark.parametrize(
    "change",
    [
        {"num_subsets": 1},
        {"num_subsets": 40.5},
        {"sampling": "shuffled"},
        {"subsets_per_step": 0.0},
        {"subsets_per_step": 40.1},
        {"subsets_per_step": math.nan},
        {"sampling": "one-of-k", "subsets_per_step": 2},
        {"sampling": "all-subsets", "subsets_per_step": 39},
        {"steps": 0},
        {"clip_norm": 0.0},
        {"clip_norm": math.inf},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"vectors_per_draw": 0},
        {"vectors_per_draw": 1.5},
    ],
)
def test_a_query_out_of_range_is_refused(change):
    with pytest.raises(BadInput):
        query(**change)


# reference/privacy.md 4.4, smallest noise for a target; K = 2500
@pytest.mark.parametrize(
    ("sampling", "remembers", "steps", "epsilon", "noise"),
    [
        ("one-of-k", False, 20_000, 10, 0.790),
        ("one-of-k", True, 20_000, 3, 9.211),
        ("poisson", False, 20_000, 1, 0.663),
        ("poisson", True, 5_000, 10, 2.172),
    ],
)
def test_the_least_noise_is_the_references(sampling, remembers, steps, epsilon, noise):
    found = calibrate(
        lambda level: query(
            sampling,
            num_subsets=2500,
            subsets_per_step=1,
            steps=steps,
            remembers_draws=remembers,
            noise_multiplier=level,
        ),
        Budget(epsilon, 1e-5),
    )
    assert found.noise_multiplier == pytest.approx(noise, rel=1e-3)
