import pytest

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Budget, cost_of
from dpray.privacy.planning import calibrate, solve
from dpray.privacy.queries import GaussianSum

RATE, STEPS = 256 / 60000, 3515


# reference/privacy.md section 3, calibration by PLD
@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(0.5, 1.9369), (1, 1.1850), (2, 0.8387), (3, 0.7282), (8, 0.5465), (10, 0.5138)],
)
def test_the_least_noise_is_the_references(epsilon, noise):
    less, more = (
        solve(delta=1e-5, noise_multiplier=noise + by, sample_rate=RATE, steps=STEPS).epsilon
        for by in (-3e-3, 3e-3)
    )
    assert more <= epsilon < less


def test_the_least_noise_is_found():
    plan = solve(delta=1e-5, epsilon=1, sample_rate=RATE, steps=STEPS)
    assert plan.noise_multiplier == pytest.approx(1.1850, abs=3e-3)


# reference/privacy.md section 5.3, analytic Gaussian
@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(0.1, 30.749566), (0.2, 16.304133), (0.5, 7.031827), (1, 3.730632), (5, 0.891868)],
)
def test_one_gaussian_is_calibrated_exactly(epsilon, noise):
    query = calibrate(lambda z: GaussianSum(name="sum", noise_multiplier=z), Budget(epsilon, 1e-5))
    assert query.noise_multiplier == pytest.approx(noise, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 50, 2000])
def test_calibration_never_overshoots_and_hardly_falls_short(epsilon, steps):
    plan = solve(delta=1e-6, epsilon=epsilon, sample_rate=0.02, steps=steps)
    assert 0.999 * epsilon < plan.epsilon <= epsilon


def test_calibration_leaves_room_for_what_is_spent():
    spent = GaussianSum(name="first", noise_multiplier=6.0).event
    query = calibrate(
        lambda z: GaussianSum(name="second", noise_multiplier=z), Budget(1.0, 1e-5), spent=[spent]
    )
    total = cost_of([spent, query.event], 1e-5).epsilon
    assert 0.999 < total <= 1.0


def test_any_of_the_four_follows_from_the_other_three():
    plan = solve(delta=1e-5, epsilon=1.0, sample_rate=0.01, steps=1000)
    z = plan.noise_multiplier
    steps = solve(delta=1e-5, epsilon=1.0, sample_rate=0.01, noise_multiplier=z).steps
    assert steps == pytest.approx(1000, abs=2)
    rate = solve(delta=1e-5, epsilon=1.0, steps=1000, noise_multiplier=z).sample_rate
    assert rate == pytest.approx(0.01, rel=2e-3)
    assert solve(delta=1e-5, noise_multiplier=z, sample_rate=0.01, steps=1000).epsilon <= 1.0


def test_one_step_more_than_the_most_would_overspend():
    plan = solve(delta=1e-5, epsilon=2.0, sample_rate=0.05, noise_multiplier=1.5)
    more = solve(delta=1e-5, sample_rate=0.05, noise_multiplier=1.5, steps=plan.steps + 1)
    assert plan.epsilon <= 2.0 < more.epsilon


def test_what_cannot_be_solved_is_refused():
    with pytest.raises(BadInput, match="leave one out"):
        solve(delta=1e-5, epsilon=1.0, steps=10)
    with pytest.raises(BudgetExceeded, match="not even one step"):
        solve(delta=1e-5, epsilon=0.1, sample_rate=1.0, noise_multiplier=0.5)
    with pytest.raises(BadInput, match="sample rate"):
        solve(delta=1e-5, epsilon=1.0, sample_rate=1.5, steps=10)
