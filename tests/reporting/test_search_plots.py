"""The pictures of a search: what each line and bar stands for, and when there is none."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from PIL import Image

from dpray.reporting.search_plots import (
    _draw_lines,
    _legend,
    axis_place,
    axis_ticks,
    draw_search,
    importance_of,
)
from dpray.search.cost import SearchCost
from dpray.search.journal import WORST, Finished, best_of
from dpray.search.outcome import SearchOutcome
from dpray.search.space import choice, draw, log_uniform, uniform, whole
from dpray.search.trials import SearchSpec

SPACE = {
    "lr": log_uniform(0.1, 10.0),
    "clip_norm": uniform(0.1, 1.0),
    "batch_size": choice(256, 1024, 4096),
}


def score_of(drawn) -> float:
    """A search where the learning rate is all that matters."""
    return 0.9 - 0.1 * math.log10(drawn["lr"]) ** 2


def make_trials(count: int, space=SPACE) -> tuple[Finished, ...]:
    rng = np.random.default_rng(0)
    draws = [draw(space, rng) for _ in range(count)]
    return tuple(Finished(n, one, f"run-{n}", score_of(one)) for n, one in enumerate(draws))


def make_outcome(trials: tuple[Finished, ...], charge: str = "compose") -> SearchOutcome:
    search = SearchSpec(
        method="dp-sgd", dataset="mnist", charge=charge, trials=9, epsilon=1.0, space=SPACE
    )
    cost = SearchCost(how=charge, epsilon=2.0, delta=1e-5, bound="pld", covers="all")
    return SearchOutcome("search-1", search, cost, trials, None)


@pytest.fixture
def axis():
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    yield axis
    plt.close(figure)


def test_a_search_gets_two_pictures(tmp_path: Path):
    drawn = draw_search(make_outcome(make_trials(12)), tmp_path / "new")
    assert [path.name for path in drawn] == ["importance.png", "parallel.png"]
    for path in drawn:
        with Image.open(path) as picture:
            assert picture.width > 700 and len(picture.convert("L").getcolors()) > 50


def test_with_select_nothing_is_drawn_even_of_trials_that_should_not_be_there(tmp_path: Path):
    assert draw_search(make_outcome(make_trials(12), charge="select"), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_without_any_score_there_is_no_picture(tmp_path: Path):
    failed = tuple(replace(trial, score=WORST) for trial in make_trials(12))
    assert draw_search(make_outcome(failed), tmp_path) == []


def test_the_setting_that_decides_the_score_is_the_most_important():
    found = importance_of(SPACE, make_trials(30))
    assert next(iter(found)) == "lr" and found["lr"] > 0.7
    assert sum(found.values()) == pytest.approx(1) and set(found) == set(SPACE)


def test_trials_that_were_stopped_or_failed_do_not_count_for_importance():
    trials = make_trials(30)
    misleading = [
        replace(
            trial, number=30 + n, score=WORST if n % 2 else trial.draw["clip_norm"], stopped=True
        )
        for n, trial in enumerate(trials)
    ]
    assert importance_of(SPACE, [*trials, *misleading]) == importance_of(SPACE, trials)


@pytest.mark.parametrize(
    "trials", [make_trials(7), tuple(replace(trial, score=0.5) for trial in make_trials(12))]
)
def test_too_few_trials_or_equal_scores_tell_no_importance(trials):
    assert importance_of(SPACE, trials) == {}


def test_one_setting_alone_has_no_importance_to_share():
    space = {"lr": SPACE["lr"], "batch_size": choice(256)}
    assert importance_of(space, make_trials(12, space)) == {}


def test_optuna_is_as_talkative_after_as_it_was_before(capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.INFO)
    importance_of(SPACE, make_trials(8))
    assert optuna.logging.get_verbosity() == logging.INFO
    assert capfd.readouterr().err == ""
    optuna.logging.set_verbosity(before)


@pytest.mark.parametrize(
    ("dimension", "value", "place"),
    [
        (uniform(2, 4), 3, 0.5),
        (log_uniform(0.01, 100), 1, 0.5),
        (whole(1, 5), 2, 0.25),
        (whole(1, 16, log=True), 4, 0.5),
        (choice("a", "b", "c"), "b", 0.5),
        (choice("a", None), None, 0.75),
        (choice("alone"), "alone", 0.5),
    ],
)
def test_a_value_has_its_place_on_the_axis(dimension, value, place):
    assert axis_place(dimension, value) == pytest.approx(place)


@pytest.mark.parametrize(
    ("dimension", "labels"),
    [
        (log_uniform(0.3, 30), ["0.3", "0.5", "1", "2", "5", "10", "20", "30"]),
        (log_uniform(1e-4, 10), ["0.0001", "0.001", "0.01", "0.1", "1", "10"]),
        (uniform(0, 0.95), ["0", "0.2", "0.4", "0.6", "0.8", "0.95"]),
        (whole(1, 4), ["1", "2", "3", "4"]),
        (choice(1.0, None, "a-very-long-name-indeed"), ["1", "None", "a-very-long-na.."]),
    ],
)
def test_an_axis_is_labelled_at_its_ends_and_at_round_numbers(dimension, labels):
    ticks = axis_ticks(dimension)
    assert [label for _, label in ticks] == labels
    places = [place for place, _ in ticks]
    assert min(np.diff(places)) >= 0.05 and min(places) >= 0 and max(places) <= 1


def test_the_best_is_thick_and_on_top_and_a_stopped_trial_is_dashed(axis):
    ended, best, stopped, failed = make_trials(4)
    ended, best = replace(ended, score=0.6), replace(best, score=0.8)
    stopped = replace(stopped, score=0.9, stopped=True)
    failed = replace(failed, score=WORST)
    trials = (ended, best, stopped, failed)
    _draw_lines(axis, SPACE, trials, ScalarMappable(Normalize(0.6, 0.9)))
    dotted, plain, dashed, thick = axis.lines  # in the order they are drawn
    assert [line.get_linestyle() for line in (dotted, plain, dashed, thick)] == [
        ":",
        "-",
        "--",
        "-",
    ]
    assert thick.get_linewidth() > 2 * plain.get_linewidth()
    assert thick.get_zorder() > max(line.get_zorder() for line in (dotted, plain, dashed))
    assert [line.get_ydata()[-1] for line in (plain, dashed, thick)] == pytest.approx([0, 1, 2 / 3])
    assert len(dotted.get_ydata()) == len(SPACE)  # it has no score to lead to
    assert plain.get_color() != dashed.get_color() != thick.get_color()


def test_of_equal_scores_the_first_is_the_best():
    trials = [replace(trial, score=0.5) for trial in make_trials(3)]
    assert best_of(trials).number == 0
    assert best_of([replace(trial, stopped=True) for trial in trials]) is None


def test_only_lines_that_occur_are_explained(axis):
    trials = make_trials(3)
    _legend(axis, trials, ScalarMappable(Normalize(0, 1)))
    (legend,) = axis.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["the best"]
