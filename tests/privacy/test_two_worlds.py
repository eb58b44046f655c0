"""Two worlds: does the release tell a subset's two contributions apart better than was charged?

reference/privacy.md 7.2 (4). Draws and releases come from the production functions; the attacker
knows every contribution and scores a run by its exact log-likelihood ratio. Lengths are in units
of the clip norm. Where subsets are drawn on their own, each writes to a coordinate of its own, and
one run is as many independent experiments as there are subsets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from dpray.privacy.audit import Audit, profile_audit
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery
from dpray.privacy.subset_queries import SubsetSums
from dpray.privacy.subset_sums import drawn_subsets, noisy_subset_mean

KEY, CLIP = RunKey.insecure(5), 0.7
Scores = tuple[np.ndarray, np.ndarray]

POISSON = SubsetSums(
    name="two worlds",
    num_subsets=4000,
    sampling="poisson",
    subsets_per_step=1000.0,
    steps=20,
    clip_norm=CLIP,
    noise_multiplier=2.0,
    remembers_draws=False,
    vectors_per_draw=1,
)
REVEALED = dataclasses.replace(POISSON, remembers_draws=True)
EVERY = dataclasses.replace(
    POISSON, sampling="all-subsets", subsets_per_step=4000, steps=4, noise_multiplier=4.0
)
ONE_OF_TWO = dataclasses.replace(
    POISSON, num_subsets=2, sampling="one-of-k", subsets_per_step=1, steps=2, noise_multiplier=1.1
)


def own_coordinates(query: SubsetSums) -> tuple[Tensor, Tensor]:
    """(steps, subsets) each: what every subset's coordinate showed, and whether it was drawn.

    The first half of the subsets contributes +1, the second half -1.
    """
    subsets = torch.arange(query.num_subsets)
    signs = torch.where(subsets < query.num_subsets // 2, 1.0, -1.0)

    def contributions(drawn: Tensor) -> Iterable[Tensor]:
        for part in drawn.split(250):
            rows = torch.zeros(len(part), query.num_subsets)
            rows[torch.arange(len(part)), part] = signs[part] * 1e6  # clipped to the bound
            yield rows

    shown, drawn = [], []
    paid = PaidQuery(query, entry=0)
    for step in range(query.steps):
        mean = noisy_subset_mean(
            contributions, subsets, step, dimension=query.num_subsets, paid=paid, key=KEY
        )
        shown.append(mean * query.expected_subsets / CLIP)
        drawn.append(torch.isin(subsets, drawn_subsets(query, KEY, step, subsets)))
    return torch.stack(shown), torch.stack(drawn)


def halves(scores: Tensor) -> Scores:
    plus, minus = scores.numpy().reshape(2, -1)
    return plus, minus


def poisson_scores(query: SubsetSums, noise: float) -> Scores:
    """The attacker does not see the draws: both likelihoods are mixtures."""
    shown, _ = own_coordinates(query)
    rate = query.sample_rate

    def likelihood(sign: float) -> Tensor:
        return torch.log(1 - rate + rate * torch.exp((sign * shown - 0.5) / noise**2))

    return halves((likelihood(1.0) - likelihood(-1.0)).sum(0))


def known_draws_scores(query: SubsetSums, noise: float) -> Scores:
    """The attacker knows the draws: undrawn steps tell nothing."""
    shown, drawn = own_coordinates(query)
    return halves((2 * shown * drawn / noise**2).sum(0))


def one_of_two_scores(query: SubsetSums, noise: float, runs: int = 1000) -> Scores:
    """The target contributes +1 or -1, the other one -1; runs are steps of one long query."""
    long = dataclasses.replace(query, steps=2 * runs * query.steps)
    paid, subsets = PaidQuery(long, entry=0), torch.arange(2)
    per_world = runs * query.steps
    shown = np.empty(2 * per_world)
    for step in range(2 * per_world):
        sign = 1.0 if step < per_world else -1.0
        mean = noisy_subset_mean(
            lambda drawn, sign=sign: [torch.where(drawn == 0, sign, -1.0)[:, None] * 9.0],
            subsets,
            step,
            dimension=1,
            paid=paid,
            key=KEY,
        )
        shown[step] = float(mean) / CLIP
    rate = query.sample_rate
    ratios = np.log(1 - rate + rate * np.exp(2 * shown / noise**2))
    plus, minus = ratios.reshape(2, runs, query.steps).sum(2)
    return plus, minus


CASES = {
    "poisson": (POISSON, poisson_scores),
    "revealed": (REVEALED, known_draws_scores),
    "every": (EVERY, known_draws_scores),
    "one-of-k": (ONE_OF_TWO, one_of_two_scores),
}


def audit(scores: Scores, claim: SubsetSums) -> Audit:
    return profile_audit(*scores, [claim.event], alpha=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_release_keeps_its_promise_and_would_break_one_of_half_the_shift(case):
    query, scores_of = CASES[case]
    assert query.event.event.sampling == case
    scores = scores_of(query, query.noise_multiplier)
    assert not audit(scores, query).violated
    # Whoever takes a subset to move the sum by C instead of 2C claims twice the noise.
    naive = dataclasses.replace(query, noise_multiplier=2 * query.noise_multiplier)
    assert audit(scores, naive).violated


@pytest.mark.parametrize("case", CASES)
def test_half_the_noise_is_caught(case, monkeypatch):
    query, scores_of = CASES[case]
    honest = RunKey.normals
    monkeypatch.setattr(RunKey, "normals", lambda *a, **k: honest(*a, **k) * 0.5)
    assert audit(scores_of(query, query.noise_multiplier / 2), query).violated


def test_known_draws_break_the_promise_of_hidden_ones():
    scores = known_draws_scores(POISSON, POISSON.noise_multiplier)
    assert audit(scores, POISSON).violated
    assert not audit(scores, REVEALED).violated


def test_a_subset_that_contributes_out_of_bounds_is_caught(monkeypatch):
    from dpray.privacy import subset_sums

    loose = lambda norms, clip_norm: 2 * clip_norm / norms.double()  # noqa: E731
    monkeypatch.setattr(subset_sums, "clip_factors", loose)
    assert audit(known_draws_scores(EVERY, EVERY.noise_multiplier), EVERY).violated


def test_the_signal_that_the_attacker_sees_has_the_size_of_the_bound():
    shown, drawn = own_coordinates(EVERY)
    plus = shown[:, : EVERY.num_subsets // 2]
    error = EVERY.noise_multiplier / math.sqrt(plus.numel())
    assert bool(drawn.all())
    assert abs(float(plus.mean()) - 1.0) < 5 * error
    assert abs(float(plus.std()) / EVERY.noise_multiplier - 1) < 5 / math.sqrt(2 * plus.numel())
