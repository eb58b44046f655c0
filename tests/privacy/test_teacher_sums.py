"""Answers of teachers: what they cost, how far one teacher can move them, and their noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Adjacency, cost_of
from dpray.privacy.events import describe, event_from_json, event_to_json
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery
from dpray.privacy.teacher_queries import TeacherSigns, TeacherVotes
from dpray.privacy.teacher_sums import noisy_sign_sums, noisy_votes, top_signs
from dpray.world import World

KEY = RunKey.insecure(5)
EVERYONE = torch.arange(40)


def votes(**changes: Any) -> TeacherVotes:
    values: dict[str, Any] = {
        "name": "votes",
        "num_teachers": 40,
        "questions_per_step": 6,
        "steps": 3,
        "noise_multiplier": 2.0,
        "num_options": 5,
    }
    return TeacherVotes(**values | changes)


def signs(**changes: Any) -> TeacherSigns:
    values: dict[str, Any] = {
        "name": "signs",
        "num_teachers": 40,
        "questions_per_step": 1,
        "steps": 3,
        "noise_multiplier": 2.0,
        "num_signs": 4,
    }
    return TeacherSigns(**values | changes)


def counted(raw: list[Tensor], step: int = 0, **changes: Any) -> Tensor:
    paid = PaidQuery(votes(**changes), entry=0)
    return noisy_votes(raw, EVERYONE, step, paid=paid, key=KEY)


def summed(raw: Tensor, step: int = 0, **changes: Any) -> Tensor:
    paid = PaidQuery(signs(**changes), entry=0)
    return noisy_sign_sums([raw], EVERYONE, step, dimension=raw.shape[2], paid=paid, key=KEY)


# GNMax whatever the votes are: reference/privacy.md 5.3.
@pytest.mark.parametrize(
    ("noise_std", "questions", "epsilon"),
    [(40.0, 1000, 4.9833), (100.0, 5000, 4.3772), (150.0, 20_000, 6.1292)],
)
def test_votes_cost_what_the_reference_says(noise_std, questions, epsilon):
    asked = votes(steps=10, questions_per_step=questions // 10)
    at_noise = votes(
        steps=10,
        questions_per_step=questions // 10,
        noise_multiplier=noise_std / asked.sensitivity,
    )
    assert at_noise.noise_std == pytest.approx(noise_std)
    assert cost_of([at_noise.event], 1e-5, coarse=True).epsilon == pytest.approx(epsilon, abs=2e-4)
    wrong = votes(steps=10, questions_per_step=questions // 10, noise_multiplier=noise_std)
    assert (
        cost_of([wrong.event], 1e-5, coarse=True).epsilon < 0.75 * epsilon
    )  # a sensitivity of one


@pytest.mark.parametrize(
    ("num_signs", "noise_std", "images", "epsilon"),
    [(200, 5000.0, 1300, 1.0), (300, 800.0, 1643, 10.0), (350, 1000.0, 2200, 10.0)],
)
def test_signs_cost_what_the_published_settings_afford(num_signs, noise_std, images, epsilon):
    """reference/baselines.md 3.5 counts images by the looser classic conversion of Renyi."""
    noise = noise_std / signs(num_signs=num_signs).sensitivity
    event = signs(num_signs=num_signs, steps=images, noise_multiplier=noise).event
    half = event.count / (2 * event.event.noise_multiplier**2)
    classic = half + 2 * math.sqrt(half * math.log(1e5))
    assert classic == pytest.approx(epsilon, rel=5e-3)  # whole orders, there
    exact = cost_of([event], 1e-5, coarse=True).epsilon
    assert 0.7 * epsilon < exact < epsilon


def test_every_question_is_a_gaussian_of_its_own_on_the_ledger():
    event = votes(steps=7, questions_per_step=11).event
    assert event.count == 77
    assert event_from_json(event_to_json(event)) == event
    assert describe(event) == "77 times (Gaussian, noise multiplier 2)"
    assert math.isinf(cost_of([votes(noise_multiplier=0.0).event], 1e-5).epsilon)


def test_replaced_records_are_not_charged_less():
    add, replace = (cost_of([votes().event], 1e-5, a, coarse=True).epsilon for a in Adjacency)
    assert replace > add


def test_a_changed_teacher_moves_the_votes_by_the_root_of_two_at_most():
    rng = torch.Generator().manual_seed(0)
    raw = torch.randint(5, (40, 6), generator=rng)
    for attack in (torch.randint(5, (6,), generator=rng), torch.full((6,), 10**9), -raw[3] - 1):
        other = raw.clone()
        other[3] = attack
        moved = (counted([raw]) - counted([other])).norm(dim=1)
        assert (moved <= math.sqrt(2) + 1e-9).all()
    assert float(moved.max()) == pytest.approx(math.sqrt(2))  # so a bound of one is exceeded


@pytest.mark.parametrize("attack", [1e30, -1e30, math.nan, math.inf, "opposite"])
def test_a_changed_teacher_moves_the_signs_by_twice_the_root_of_their_number(attack):
    rng = torch.Generator().manual_seed(0)
    raw = torch.randn(40, 1, 9, generator=rng)
    other = raw.clone()
    other[3] = -raw[3] if attack == "opposite" else attack
    moved = float((summed(raw) - summed(other)).norm())
    assert moved <= signs().sensitivity + 1e-9
    if attack == "opposite":
        assert moved == pytest.approx(signs().sensitivity)  # so no smaller bound would hold


def test_a_vector_that_is_not_cut_down_exceeds_the_bound():
    raw = torch.randn(1, 1, 9, generator=torch.Generator().manual_seed(0))
    assert float((raw.sign() * 2).norm()) > signs().sensitivity
    cut = top_signs(raw, 4)
    assert set(cut.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert int(cut.abs().sum()) == 4
    assert float((raw * cut).sum()) == pytest.approx(float(raw.abs().topk(4).values.sum()))


def noise_of(kind: str, noise_multiplier: float) -> Tensor:
    """What is released where no teacher says anything, in units of the promised noise."""
    if kind == "votes":
        asked = {"questions_per_step": 40_000, "noise_multiplier": noise_multiplier}
        return counted([], **asked).flatten() / votes().noise_std
    raw = torch.zeros(0, 1, 200_000)
    return summed(raw, noise_multiplier=noise_multiplier).flatten() / signs().noise_std


@pytest.mark.parametrize("kind", ["votes", "signs"])
def test_the_noise_has_the_promised_scale_and_a_wrong_one_is_noticed(kind):
    noise = noise_of(kind, 2.0)
    assert abs(float(noise.std()) - 1.0) < 0.008
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    assert votes().noise_std == pytest.approx(2.0 * math.sqrt(2))
    assert signs().noise_std == pytest.approx(2.0 * 2 * math.sqrt(4))
    for wrong in (1.0, 1.96, 2.04):
        assert abs(float(noise_of(kind, wrong).std()) - 1.0) > 0.008


def test_counts_add_up_over_pieces_and_a_replay_is_the_same():
    raw = torch.randint(5, (40, 6), generator=torch.Generator().manual_seed(0))
    whole, pieces = counted([raw]), counted(list(raw.split(7)))
    assert torch.equal(whole, pieces)
    noise = KEY.normals("votes/noise", 0, 30).reshape(6, 5) * votes().noise_std
    expected = torch.nn.functional.one_hot(raw, 5).sum(0)
    torch.testing.assert_close(whole, expected + noise)
    assert not torch.allclose(whole, counted([raw], step=1))


def test_a_teacher_that_answers_twice_or_is_held_twice_is_refused():
    raw = torch.zeros(40, 6, dtype=torch.long)
    for wrong in ([raw, raw[:1]], [raw[:, :5]]):
        with pytest.raises(BadInput, match="breaks the bound"):
            counted(wrong)
    paid = PaidQuery(votes(), entry=0)
    with pytest.raises(BadInput, match="subset numbers"):
        noisy_votes([raw], EVERYONE % 39, 0, paid=paid, key=KEY, world=World())


def test_what_was_not_paid_for_is_refused_before_anybody_answers():
    def never():
        raise AssertionError("teachers were asked")
        yield

    with pytest.raises(BudgetExceeded, match="step 3 of 'votes' was not paid for"):
        noisy_votes(never(), EVERYONE, 3, paid=PaidQuery(votes(), entry=0), key=KEY)


@pytest.mark.parametrize(
    "wrong",
    [{"noise_multiplier": math.nan}, {"num_options": 1}, {"questions_per_step": 0}, {"steps": 0}],
)
def test_a_query_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(BadInput):
        votes(**wrong)
