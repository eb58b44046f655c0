"""Numbers from reference/privacy.md sections 3 and 4.4."""

import dp_accounting as dp
import pytest

from dpray.privacy.accounting import Adjacency, cost_of
from dpray.privacy.queries import PoissonGradients
from dpray.privacy.subsets import subset_epsilon


# K, T, sigma, m, tight subset bound, Poisson
@pytest.mark.parametrize(
    ("subsets", "steps", "noise", "vectors", "tight", "poisson"),
    [
        (10, 50, 4, 1, 1.7615, 1.3558),
        (100, 500, 2, 1, 1.5415, 0.8243),
        (100, 500, 4, 1, 0.4936, 0.3848),
        (100, 2000, 4, 1, 1.0491, 0.8198),
        (50, 1000, 6, 1, 0.8978, 0.7684),
        (100, 500, 4, 4, 1.5415, 0.8243),
    ],
)
def test_drawing_one_of_k_costs_what_the_reference_says(
    subsets, steps, noise, vectors, tight, poisson
):
    ours = subset_epsilon(
        rate=1 / subsets, noise_multiplier=noise, steps=steps, delta=1e-5, vectors_per_draw=vectors
    )
    assert ours == pytest.approx(tight, abs=3e-3)
    query = PoissonGradients(
        sample_rate=1 / subsets,
        steps=steps,
        clip_norm=1.0,
        noise_multiplier=noise / vectors**0.5,
        expected_batch_size=1.0,
    )
    by_poisson = cost_of([query.event], 1e-5, Adjacency.REPLACE).epsilon
    assert by_poisson == pytest.approx(poisson, abs=3e-3)
    assert by_poisson <= ours


@pytest.mark.parametrize(
    ("noise", "tight", "library"), [(1.1, 8.9142, 13.6148), (2, 1.6975, 2.7033)]
)
def test_batches_of_a_fixed_size_cost_far_more_than_poisson_ones(noise, tight, library):
    rate, steps = 256 / 60000, 3515
    ours = subset_epsilon(
        rate=rate, noise_multiplier=noise, steps=steps, delta=1e-5, vectors_per_draw=1
    )
    assert ours == pytest.approx(tight, abs=5e-3)
    fixed = dp.SampledWithoutReplacementDpEvent(60000, 256, dp.GaussianDpEvent(noise))
    cost = cost_of([dp.SelfComposedDpEvent(fixed, steps)], 1e-5, Adjacency.REPLACE)
    assert cost.pld is None
    assert cost.rdp == pytest.approx(library, abs=1e-3)
    assert ours < cost.rdp
