"""Golden numbers from reference/privacy.md section 6.3, and oracles that share no code with us."""

import math

import dp_accounting as dp
import numpy as np
import pytest
import torch
from scipy import stats

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Adjacency, cost_of
from dpray.privacy.noise import RunKey
from dpray.privacy.selection import (
    Trial,
    TrialLaw,
    base_budget_for,
    cost_of_composition,
    cost_of_selection,
    profile,
)
from dpray.privacy.subsets import SubsetAwareAccountant, SubsetsDpEvent

DELTA = 1e-5
# Each costs epsilon 1: the DP-SGD of section 3's calibration table, and one Gaussian (5.3).
DP_SGD = dp.SelfComposedDpEvent(
    dp.PoissonSampledDpEvent(256 / 60000, dp.GaussianDpEvent(1.185)), 3515
)
NOISE = 3.730632
GAUSSIAN = dp.GaussianDpEvent(NOISE)
LAWS = {
    "poisson": TrialLaw.poisson(20),
    "eta 2": TrialLaw.negative_binomial(20, 2),
    "geometric": TrialLaw.geometric(20),
    "eta 0.5": TrialLaw.negative_binomial(20, 0.5),
    "logarithmic": TrialLaw.logarithmic(20),
}


@pytest.mark.parametrize("event", [DP_SGD, GAUSSIAN])
def test_a_trial_of_the_reference_costs_epsilon_1(event):
    assert cost_of([event], DELTA).epsilon == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("law", "of_dp_sgd", "of_gaussian"),
    [
        ("poisson", (3.237, 3.703), (3.316, 3.807)),
        ("eta 2", (2.478, 2.964), (2.504, 2.922)),
        ("geometric", (2.202, 2.565), (2.217, 2.512)),
        ("eta 0.5", (2.040, 2.345), (2.048, 2.286)),
        ("logarithmic", (1.857, 2.106), (1.857, 2.041)),
    ],
)
def test_keeping_the_best_of_20_costs_what_the_reference_says(law, of_dp_sgd, of_gaussian):
    for event, numbers in ((DP_SGD, of_dp_sgd), (GAUSSIAN, of_gaussian)):
        cost = cost_of_selection(event, LAWS[law], DELTA)
        assert (cost.profile, cost.rdp) == pytest.approx(numbers, abs=0.01)
        assert cost.epsilon == min(cost.profile, cost.rdp)


@pytest.mark.parametrize(
    ("mean", "of_dp_sgd", "of_gaussian"),
    [
        (5, (1.714, 1.618), (1.730, 1.635)),
        (10, (1.982, 2.173), (1.999, 2.210)),
        (50, (2.456, 6.354), (2.466, 6.566)),
        (100, (2.630, 11.499), (2.636, 11.935)),
    ],
)
def test_other_means_cost_what_the_reference_says(mean, of_dp_sgd, of_gaussian):
    for event, numbers in ((DP_SGD, of_dp_sgd), (GAUSSIAN, of_gaussian)):
        found = [
            cost_of_selection(event, law, DELTA).profile
            for law in (TrialLaw.geometric(mean), TrialLaw.poisson(mean))
        ]
        assert found == pytest.approx(numbers, abs=0.01)


@pytest.mark.parametrize(
    ("event", "pld", "rdp"), [(DP_SGD, 5.207, 5.628), (GAUSSIAN, 5.407, 5.831)]
)
def test_publishing_all_20_costs_what_the_reference_says(event, pld, rdp):
    cost = cost_of_composition(event, 20, DELTA)
    assert (cost.pld, cost.rdp) == pytest.approx((pld, rdp), abs=0.01)
    together = cost_of([dp.SelfComposedDpEvent(event, 20)], DELTA)
    assert cost.epsilon == pytest.approx(together.epsilon, abs=1e-5)


def test_the_laws_are_those_of_the_reference():
    geometric, logarithmic = LAWS["geometric"], LAWS["logarithmic"]
    ones = [1 - law.probability_above(1) for law in (logarithmic, geometric)]
    many = [law.probability_above(100) for law in (logarithmic, geometric)]
    assert ones == pytest.approx((0.219, 0.05), abs=5e-4)
    assert many == pytest.approx((0.041, 0.006), abs=5e-4)
    assert geometric.probability_above(450) == pytest.approx(9.5e-11, rel=0.01)
    assert geometric.probability_above(300) == pytest.approx(2.1e-7, rel=0.02)
    assert 1 - LAWS["poisson"].probability_above(5) == pytest.approx(7e-5, rel=0.05)


SCIPY = {
    "geometric": stats.geom(1 / 20),
    "logarithmic": stats.logser(1 - LAWS["logarithmic"].gamma),
    "poisson": stats.poisson(20),
}


@pytest.mark.parametrize("name", SCIPY)
def test_probabilities_and_means_are_scipys(name):
    law, known = LAWS[name], SCIPY[name]
    assert known.mean() == pytest.approx(20, rel=1e-9)
    for cap in (0, 1, 2, 7, 20, 60):
        assert law.probability_above(cap) == pytest.approx(known.sf(cap), rel=1e-9, abs=1e-14)
    assert law.probability_above(law.default_cap) <= 2.0**-64
    assert law.probability_above(law.default_cap - 1) > 2.0**-64


def epsilon_of_the_largest_of_k_gaussians(law) -> float:
    """Exact: the density of the best of K scores, for two neighbours, on a fine grid."""
    counts = np.arange(0, 6000)
    weights = (law.pmf(counts) * counts)[1:]
    scores = np.linspace(-7, 7, 4001)
    densities = []
    for shift in (0.0, 1 / NOISE):
        below = stats.norm.cdf(scores, shift)
        kept = np.zeros_like(below)
        for weight in weights[::-1]:  # Horner: the sum of P(K = k) k below^(k - 1)
            kept = kept * below + weight
        densities.append(stats.norm.pdf(scores, shift) * kept)
    one, other = densities
    low, high = 0.0, 10.0
    for _ in range(40):
        epsilon = (low + high) / 2
        gaps = (one - math.exp(epsilon) * other, other - math.exp(epsilon) * one)
        delta = max(np.maximum(gap, 0).sum() for gap in gaps) * (scores[1] - scores[0])
        low, high = (epsilon, high) if delta > DELTA else (low, epsilon)
    return high


@pytest.mark.parametrize(
    ("name", "exact"), [("geometric", 1.184), ("poisson", 2.089), ("logarithmic", None)]
)
def test_the_exact_epsilon_of_the_best_gaussian_lies_below_the_bounds(name, exact):
    truth = epsilon_of_the_largest_of_k_gaussians(SCIPY[name])
    if exact is not None:
        assert truth == pytest.approx(exact, abs=2e-3)
    cost = cost_of_selection(GAUSSIAN, LAWS[name], DELTA)
    assert truth < cost.profile and truth < cost.rdp
    assert truth > 1.02  # so that charging the one trial that is kept would be refuted


@pytest.mark.parametrize("name", SCIPY)
def test_draws_follow_the_law_and_not_one_with_another_mean(name):
    bits = RunKey.insecure(5).uniform_bits("any", 0, torch.arange(40_000))
    drawn = LAWS[name].draw_from(bits)
    edges = sorted({int(SCIPY[name].ppf(q)) for q in np.linspace(0.02, 0.98, 25)})

    def p_value(law) -> float:
        expected = np.diff([0.0, *(1 - law.probability_above(e) for e in edges), 1.0])
        seen = np.diff([0, *((drawn <= e).sum() for e in edges), len(drawn)])
        return stats.chisquare(seen, expected * len(drawn)).pvalue

    assert abs(drawn.mean() - 20) < 4 * drawn.std() / math.sqrt(len(drawn))
    assert p_value(LAWS[name]) > 1e-3
    assert p_value(TrialLaw(LAWS[name].shape, 22)) < 1e-6
    assert p_value(TrialLaw(3.0, 20)) < 1e-6


def test_a_key_draws_the_same_number_again_and_never_more_than_the_cap():
    law = TrialLaw.geometric(20)
    drawn = [law.draw(RunKey.insecure(i)) for i in range(60)]
    assert drawn == [law.draw(RunKey.insecure(i)) for i in range(60)]
    assert len(set(drawn)) > 15
    assert [law.draw(RunKey.insecure(i), cap=9) for i in range(60)] == [min(k, 9) for k in drawn]


def test_only_a_poisson_search_may_make_no_trial():
    extremes = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert TrialLaw.poisson(2).draw_from(extremes)[1] == 0
    for law in (TrialLaw.geometric(2), TrialLaw.logarithmic(2), TrialLaw.geometric(1)):
        assert list(law.draw_from(extremes)) == [law.default_cap, 1]


@pytest.mark.parametrize(
    "make", [TrialLaw.geometric, TrialLaw.logarithmic, TrialLaw.poisson], ids=lambda m: m.__name__
)
def test_more_trials_cost_more_and_choosing_less_than_publishing_all(make):
    means = (1, 2, 5, 20, 60)
    costs = [cost_of_selection(GAUSSIAN, make(mean), DELTA) for mean in means]
    for bound in ("profile", "rdp"):
        values = [getattr(cost, bound) for cost in costs]
        assert values == sorted(values) and len(set(values)) == len(values)
    assert costs[3].epsilon < cost_of_composition(GAUSSIAN, 20, DELTA).epsilon


def test_a_search_of_one_trial_is_that_trial():
    alone = cost_of([GAUSSIAN], DELTA).epsilon
    for law in (TrialLaw.geometric(1), TrialLaw.logarithmic(1)):
        assert cost_of_selection(GAUSSIAN, law, DELTA).epsilon == pytest.approx(alone, abs=1e-6)
    assert cost_of_composition(GAUSSIAN, 1, DELTA).epsilon == pytest.approx(alone, abs=1e-6)


def test_a_hard_cap_is_paid_out_of_delta():
    law = TrialLaw.geometric(20)
    free = cost_of_selection(GAUSSIAN, law, DELTA).profile
    capped = cost_of_selection(GAUSSIAN, law, DELTA, cap=300).profile
    aside = (1 + math.exp(capped)) * law.probability_above(300)
    assert 0.1 * DELTA < aside < DELTA
    # The same bound at what is left of delta, where the cap is free, and not at all of it.
    assert capped >= cost_of_selection(GAUSSIAN, law, DELTA - aside).profile > free + 0.005
    assert capped < cost_of_selection(GAUSSIAN, law, DELTA - 1.05 * aside).profile
    assert cost_of_selection(GAUSSIAN, law, DELTA, cap=100).epsilon == math.inf


def test_a_record_meets_the_training_or_the_score_and_the_costlier_counts():
    cheap, dear = dp.GaussianDpEvent(8.0), dp.GaussianDpEvent(3.0)
    law = TrialLaw.geometric(20)
    for trial in (Trial(dear, cheap), Trial(cheap, dear)):
        kept = cost_of_selection(trial, law, DELTA)
        assert kept.by_bound() == cost_of_selection(dear, law, DELTA).by_bound()
        assert cost_of_composition(trial, 20, DELTA) == cost_of_composition(dear, 20, DELTA)
        assert profile(trial).delta([0.5]) == profile(dear).delta([0.5])
    both = dp.ComposedDpEvent([dear, cheap])
    moved = cost_of_selection(Trial(dear, cheap), law, DELTA, adjacency=Adjacency.REPLACE)
    expected = cost_of_selection(both, law, DELTA, adjacency=Adjacency.REPLACE)
    assert moved.by_bound() == expected.by_bound()
    assert moved.epsilon > 2 * kept.epsilon


def test_settings_that_cost_differently_are_charged_as_the_costliest():
    law = TrialLaw.geometric(10)
    trials = [Trial(dp.GaussianDpEvent(noise)) for noise in (9.0, 4.0, 6.0)]
    together = cost_of_selection(trials, law, DELTA)
    assert together.by_bound() == cost_of_selection(trials[1], law, DELTA).by_bound()
    with pytest.raises(BadInput, match="all with a score or all without"):
        cost_of_selection([trials[0], Trial(GAUSSIAN, GAUSSIAN)], law, DELTA)


@pytest.mark.parametrize("event", [DP_SGD, GAUSSIAN])
def test_a_profile_is_the_accountants_and_never_rises(event):
    accountant = SubsetAwareAccountant(value_discretization_interval=1e-3)
    accountant.compose(event)
    ours = profile(accountant)
    grid = np.linspace(0, 6, 500)
    theirs = [accountant.get_delta(epsilon) for epsilon in grid[::50]]
    assert ours.delta(grid[::50]) == pytest.approx(theirs, rel=1e-6, abs=1e-13)
    assert (np.diff(ours.delta(grid)) <= 0).all()
    for delta in (1e-2, DELTA, 1e-9):
        theirs = accountant.get_epsilon(delta)
        assert theirs <= ours.epsilon(delta) < theirs + 1e-6
    assert (profile(event).delta(grid) <= ours.delta(grid) + 1e-12).all()
    assert ours.epsilon(0.9) == 0.0


def test_subsets_are_bounded_by_their_profile_and_no_noise_by_nothing():
    subsets = dp.SelfComposedDpEvent(SubsetsDpEvent("poisson", 0.02, 4.0, 1), 100)
    cost = cost_of_selection(subsets, TrialLaw.geometric(10), DELTA)
    assert cost.rdp is None
    assert cost_of([subsets], DELTA).epsilon < cost.epsilon < 20
    bare = dp.ComposedDpEvent([GAUSSIAN, dp.NonPrivateDpEvent()])
    assert cost_of_selection(bare, TrialLaw.geometric(10), DELTA).epsilon == math.inf
    assert cost_of_composition(bare, 10, DELTA).epsilon == math.inf
    with pytest.raises(BadInput, match="no privacy profile"):
        profile(bare)


@pytest.mark.parametrize("search", [TrialLaw.geometric(20), TrialLaw.poisson(5), 20])
def test_the_budget_of_one_trial_keeps_the_search_to_its_total(search):
    found = base_budget_for(2.0, search, dp.GaussianDpEvent, delta=DELTA)
    assert 2.0 * 0.998 < found.total_epsilon <= 2.0
    event = dp.GaussianDpEvent(found.noise_multiplier)
    assert found.budget.epsilon == cost_of([event], DELTA).epsilon
    less = dp.GaussianDpEvent(found.noise_multiplier * 0.99)
    if isinstance(search, int):
        again = cost_of_composition(less, search, DELTA)
    else:
        again = cost_of_selection(less, search, DELTA)
    assert again.epsilon > 2.0


def test_a_score_that_costs_too_much_leaves_no_budget():
    with pytest.raises(BudgetExceeded, match="no noise level"):
        base_budget_for(1.0, 5, lambda noise: Trial(dp.GaussianDpEvent(noise), GAUSSIAN))


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        (lambda: TrialLaw.geometric(0.5), "mean of 0.5"),
        (lambda: TrialLaw.poisson(0), "mean of 0"),
        (lambda: TrialLaw.logarithmic(math.nan), "mean of nan"),
        (lambda: TrialLaw.logarithmic(math.inf), "mean of inf"),
        (lambda: TrialLaw.negative_binomial(5, -0.5), "shape -0.5"),
        (lambda: TrialLaw.negative_binomial(5, math.inf), "TrialLaw.poisson"),
        (lambda: TrialLaw.geometric(5).draw(RunKey.insecure(0), cap=0), "cap of 0"),
        (lambda: TrialLaw.geometric(5).probability_above(-1), "cap of -1"),
        (lambda: cost_of_selection(GAUSSIAN, TrialLaw.geometric(5), -1e-5), "delta -1e-05"),
        (lambda: cost_of_selection(GAUSSIAN, TrialLaw.geometric(5), math.nan), "delta nan"),
        (lambda: cost_of_selection(GAUSSIAN, TrialLaw.geometric(5), 1e-5, cap=0), "cap of 0"),
        (lambda: cost_of_composition(GAUSSIAN, 0, 1e-5), "0 trials"),
        (lambda: cost_of_composition(GAUSSIAN, 5, 1), "delta 1"),
        (lambda: base_budget_for(-1.0, 5, dp.GaussianDpEvent), "epsilon -1"),
        (lambda: profile(GAUSSIAN).delta([-1.0]), "epsilon -1"),
    ],
)
def test_nonsense_is_refused_in_one_line(nonsense, message):
    with pytest.raises(BadInput, match=message):
        nonsense()
