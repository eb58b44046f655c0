"""What a trial will be charged with is known before it starts, and is what its ledger says."""

from __future__ import annotations

import math

import pytest

from dpray import methods
from dpray.errors import BadInput
from dpray.privacy.accounting import Budget, cost_of
from dpray.privacy.queries import PoissonGradients
from dpray.search.budgets import (
    CannotMeetBudget,
    DataFacts,
    score_event,
    settings_with_steps,
    steps_for,
    training_event,
)

pytestmark = pytest.mark.usefixtures("own_cache")

BUDGET = Budget(1.0, 1e-5)
FACTS = DataFacts(num_records=60, num_classes=3)
NOISE_AT_ONE = 3.730632  # of one Gaussian at epsilon 1 and delta 1e-5: reference section 6.3

# Where they draw batches, all ask the same: six steps at a third of the records, computed once.
SIX = {"batch_size": 20, "epochs": 2.0}
TAUGHT = {"teachers": 6, "teacher_steps": 1, "rounds": 2, "questions": 3, "hidden": 4}
TINY = [
    ("augm", {"latent": 2, "hidden": 8, **SIX}),
    ("dp-merf", {"frequencies": 20, "hidden": 8, "steps": 3, "images_per_class": 2}),
    ("dp-match", {"spc": 2, "networks": 2, "width": 2, "steps": 2, "dimensions": 4, "warp": 1.0}),
    ("dp-moments", {"dimensions": 4, "components": 2, "warp": 0.5}),
    ("dp-sgd", {"features": "pixels", **SIX}),
    ("dp-vae", {"latent": 2, "hidden": 8, **SIX}),
    # Beside statistics, and where each class has a learner of its own: every record in every step.
    (
        "dp-vae",
        {
            "latent": 2,
            "hidden": 8,
            "batch_size": 60,
            "epochs": 2,
            "class_model": "noisy-statistics",
        },
    ),
    (
        "dpmi",
        {
            "public_steps": 3,
            "public_latent": 6,
            "ascent_steps": 2,
            "noise": 2,
            "hidden": 4,
            "batch_size": 20,
            "steps": 4,
            "classes": "per-class",
        },
    ),
    (
        "dp2-vae",
        {"encoders": 6, "latent": 2, "hidden": 4, "pretrain_steps": 2, "steps": 4},
    ),
    ("datalens", {**TAUGHT, "signs": 5}),
    ("g-pate", {**TAUGHT, "projections": 2}),
    ("pate-gan", {**TAUGHT, "questions": 6, "student_steps": 2}),
    ("vaegm", {"latent": 2, "hidden": 8, "batch_size": 20, "epochs": 2.0}),
    ("psg", {"spc": 2, "width": 4, "iterations": 3, "outer": 2, "inner": 1, "batch_size": 20}),
]


@pytest.mark.parametrize(("name", "settings"), TINY, ids=lambda value: str(value)[:12])
def test_the_event_is_the_one_the_ledger_is_charged_with(name, settings, tiny_data, make_run):
    method, run = methods.find(name)(**settings), make_run(epsilon=1.0)
    event = training_event(method, FACTS, BUDGET)
    method.fit(tiny_data, run)
    parts = {entry.part for entry in run.ledger.entries}
    charged = [entry.event for entry in run.ledger.entries if entry.part == min(parts)]
    for delta in (1e-5, 1e-9):  # one epsilon at one delta is not the whole of a cost
        epsilon = cost_of([event], delta).epsilon
        assert epsilon == pytest.approx(cost_of(charged, delta).epsilon, rel=1e-4)


def test_a_method_whose_cost_is_not_known_beforehand_is_refused() -> None:
    with pytest.raises(BadInput, match="what a trial of continual costs is not known"):
        training_event(methods.find("continual")(), FACTS, BUDGET)


def test_the_score_takes_all_of_the_budget() -> None:
    assert score_event(BUDGET).noise_multiplier == pytest.approx(NOISE_AT_ONE, rel=1e-4)


@pytest.mark.parametrize("looks", [2, 3, 4, 7])
def test_several_looks_share_the_budget_of_the_score(looks: int) -> None:
    event = score_event(BUDGET, looks=looks)
    assert event.count == looks
    # Noise of z a look for R looks is as noise of z / root R once.
    assert event.event.noise_multiplier == pytest.approx(NOISE_AT_ONE * looks**0.5, rel=1e-4)
    one_by_one = [event.event] * looks
    assert 0.999 < cost_of(one_by_one, 1e-5).epsilon <= 1.0 < cost_of(one_by_one * 2, 1e-5).epsilon
    assert cost_of([event], 1e-5).epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_trial_has_at_least_the_look_at_its_end() -> None:
    assert score_event(BUDGET, looks=1) == score_event(BUDGET)
    with pytest.raises(BadInput, match="its end is one"):
        score_event(BUDGET, looks=0)


def test_steps_are_the_most_that_fit_where_every_record_is_in_every_step() -> None:
    method = methods.find("dp-sgd")(batch_size=60)
    for noise in (8.0, 20.0, 37.0):
        # Noise of z a step for T steps is as noise of z / root T once.
        assert steps_for(method, FACTS, noise, BUDGET) == math.floor((noise / NOISE_AT_ONE) ** 2)


def test_steps_are_the_most_that_fit_on_poisson_batches() -> None:
    method, facts = methods.find("dp-vae")(batch_size=200), DataFacts(1000, 10)
    steps = steps_for(method, facts, 4.0, BUDGET, most_steps=100)

    def epsilon(count: int) -> float:
        query = PoissonGradients(
            sample_rate=0.2,
            steps=count,
            clip_norm=1.0,
            noise_multiplier=4.0,
            expected_batch_size=200,
        )
        return cost_of([query.event], 1e-5).epsilon

    assert epsilon(steps) <= 1.0 < epsilon(steps + 2)


def test_too_few_and_too_many_steps_are_rejected() -> None:
    method = methods.find("dp-sgd")(batch_size=60)
    with pytest.raises(CannotMeetBudget, match="affords 0 steps, and 1 are needed"):
        steps_for(method, FACTS, 1.0, BUDGET)
    with pytest.raises(CannotMeetBudget, match="affords 4 steps, and 5 are needed"):
        steps_for(method, FACTS, 8.0, BUDGET, least_steps=5)
    with pytest.raises(CannotMeetBudget, match="affords more than 3 steps"):
        steps_for(method, FACTS, 8.0, BUDGET, most_steps=3)


@pytest.mark.parametrize("name", ["dp-merf", "psg", "dp2-vae", "sgd"])
def test_a_method_without_such_steps_takes_no_noise(name: str) -> None:
    with pytest.raises(BadInput, match="has no steps that would follow"):
        steps_for(methods.find(name)(), FACTS, 8.0, BUDGET)


@pytest.mark.parametrize("steps", [1, 7, 333])
def test_the_steps_come_out_as_they_were_put_in(steps: int) -> None:
    facts = DataFacts(1237, 3)
    for name in ("dp-sgd", "dpmi"):
        method = methods.find(name)(batch_size=97)
        assert settings_with_steps(method, facts, steps) == {"steps": steps}
    for name in ("dp-vae", "augm"):  # which count steps as this line does
        epochs = settings_with_steps(methods.find(name)(batch_size=97), facts, steps)["epochs"]
        assert round(epochs * 1237 / 97) == steps
