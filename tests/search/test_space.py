"""Spaces: what may be drawn, and the one line for what may not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpray import methods
from dpray.errors import BadInput
from dpray.search.space import (
    check_space,
    choice,
    draw,
    load_space,
    log_uniform,
    space_from_json,
    space_to_json,
    to_optuna,
    uniform,
    whole,
)

SPACE = {
    "momentum": uniform(0.0, 0.9),
    "lr": log_uniform(0.01, 10.0),
    "steps": whole(10, 20),
    "batch_size": whole(16, 1024, log=True),
    "optimizer": choice("sgd", "adam"),
}


def draws(count: int) -> list[dict]:
    rng = np.random.default_rng(0)
    return [draw(SPACE, rng) for _ in range(count)]


def test_draws_keep_to_their_ranges_and_reach_both_ends() -> None:
    found = draws(2000)
    for name, low, high in (("momentum", 0, 0.9), ("lr", 0.01, 10), ("batch_size", 16, 1024)):
        values = [one[name] for one in found]
        assert low <= min(values) < low + 0.05 * (high - low)
        assert high >= max(values) > 0.9 * high
    assert {one["steps"] for one in found} == set(range(10, 21))
    assert {one["optimizer"] for one in found} == {"sgd", "adam"}
    assert all(type(one["steps"]) is int and type(one["lr"]) is float for one in found)


def test_a_logarithmic_range_gives_every_factor_its_share_and_a_straight_one_does_not() -> None:
    found = draws(4000)
    middle = {"lr": 0.1**0.5, "batch_size": 128, "momentum": 0.45}
    below = {name: np.mean([one[name] < at for one in found]) for name, at in middle.items()}
    assert all(abs(share - 0.5) < 0.04 for share in below.values())
    assert np.mean([one["momentum"] < 0.09 for one in found]) < 0.15


def test_the_same_generator_gives_the_same_draws() -> None:
    assert draws(3) == draws(3)
    assert len({one["lr"] for one in draws(3)}) == 3


def test_optuna_gets_the_same_ranges() -> None:
    found = to_optuna(SPACE)
    assert (found["lr"].low, found["lr"].high, found["lr"].log) == (0.01, 10.0, True)
    assert (found["momentum"].high, found["momentum"].log) == (0.9, False)
    assert (found["batch_size"].low, found["batch_size"].log) == (16, True)
    assert found["optimizer"].choices == ("sgd", "adam")


def test_a_space_goes_to_json_and_back() -> None:
    assert space_from_json(json.loads(json.dumps(space_to_json(SPACE)))) == SPACE
    with pytest.raises(BadInput, match="search space cannot be read"):
        space_from_json({"lr": {"kind": "normal", "low": 0, "high": 1}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: uniform(2, 1), "from 2 to 1 is empty"),
        (lambda: log_uniform(0, 1), "must start above 0"),
        (lambda: log_uniform(1, float("inf")), "inf is not a finite number"),
        (lambda: whole(1.5, 3), "1.5 is not a whole number"),
        (lambda: choice(), "at least one value"),
        (lambda: choice(1, 1), "each once"),
        (lambda: choice([1]), r"\[1\] cannot be chosen"),
    ],
)
def test_a_dimension_that_means_nothing_is_refused(make, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


@pytest.mark.parametrize(
    ("method", "space", "message"),
    [
        ("dp-sgd", {"learning_rate": uniform(0, 1)}, "no setting of dp-sgd .* 'learning_rate'"),
        ("dp-sgd", {"learning_rate": uniform(0, 1)}, "choose from: averaging, batch_size"),
        ("dp-sgd", {"batch_size": uniform(1, 10)}, "batch_size=4.4.* expected int"),
        ("dp-sgd", {"model": choice("linear", "tree")}, "no value of model 'tree'"),
        ("dp-sgd", {"noise_multiplier": choice(1.0, 0.0)}, "noise_multiplier 0.0 must be"),
        ("dp-merf", {"noise_multiplier": choice(1.0)}, "dp-merf cannot be searched over noise"),
        ("sgd", {"noise_multiplier": choice(1.0)}, "sgd cannot be searched over noise"),
        ("dp-sgd", {}, "is empty"),
    ],
)
def test_a_space_that_does_not_fit_its_method_is_one_line(method, space, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        check_space(space, methods.find(method))
    assert "\n" not in str(refusal.value)


def test_the_users_own_file_takes_the_place_of_the_one_that_comes_along(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("from dpray.search.space import choice\nSPACE = {'lr': choice(0.5, 1.0)}\n")
    assert load_space("dp-sgd", own) == {"lr": choice(0.5, 1.0)}
    assert set(load_space("dp-sgd")) >= {"lr", "clip_norm", "batch_size", "noise_multiplier"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SPACE = {", "cannot be read: SyntaxError"),
        ("import no_such_thing", "cannot be read: ModuleNotFoundError"),
        ("SPACES = {}", "must define SPACE"),
        ("SPACE = {'lr': (0.1, 1)}", r"must define SPACE.*log_uniform\(...\)"),
        ("from dpray.search.space import *\nSPACE = {'lr': uniform(2, 1)}", "mine.py: a range"),
        ("from dpray.search.space import *\nSPACE = {'rate': uniform(1, 2)}", "no setting of"),
    ],
)
def test_a_file_without_a_space_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    own = tmp_path / "mine.py"
    own.write_text(text)
    with pytest.raises(BadInput, match=message) as refusal:
        load_space("dp-sgd", own)
    assert "\n" not in str(refusal.value)
    with pytest.raises(BadInput, match="no file"):
        load_space("dp-sgd", tmp_path / "gone.py")
