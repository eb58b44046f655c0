"""The spaces that come along: one for every method, and every draw of them is a run."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any

import numpy as np
import pytest

from dpray import methods
from dpray.execute import check
from dpray.search.budgets import DataFacts
from dpray.search.space import FOLDER, NOISE, draw, load_space
from dpray.search.trials import SearchSpec

# What sixty tiny images of three classes ask for.
FIXED: dict[str, dict[str, Any]] = {
    "continual": {"classes_per_task": 1},
    "dp2-vae": {"encoders": 6},
    "gs-wgan": {"critics": 6},
    "dp-sgd": {"features": "pixels"},
    "datalens": {"teachers": 6},
    "g-pate": {"teachers": 6},
    "pate-gan": {"teachers": 6},
}
CHARGED = [n for n, k in methods.table().items() if k.private and n != "continual"]


def search(name: str, **changes: Any) -> SearchSpec:
    kind = methods.find(name)
    reads_public_data = hasattr(kind, "public_data")
    values: dict[str, Any] = {
        "method": name,
        "dataset": "mnist@rest" if reads_public_data else "mnist",
        "public": "mnist@labelling" if reads_public_data else None,
        "charge": "public",
        "proxy": "digits",
        "trials": 10,
        "epsilon": 1.0 if kind.private else None,
        "space": load_space(name),
        "settings": FIXED.get(name, {}),
        "least_steps": 1,
    }
    return SearchSpec(**{**values, **changes})


def test_every_method_has_a_space_in_a_file_of_its_own_name() -> None:
    stems = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert stems == {name.replace("-", "_") for name in methods.table()}


def test_the_spaces_are_installed_with_the_package() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    assert "tune_spaces*" in project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert (FOLDER / "__init__.py").exists()


@pytest.mark.parametrize("name", methods.table())
def test_every_key_is_a_field_and_the_file_is_short(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(methods.find(name))}
    assert set(load_space(name)) <= fields | {NOISE}
    lines = (FOLDER / f"{name.replace('-', '_')}.py").read_text().splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith('"""')


@pytest.mark.parametrize("name", methods.table())
def test_a_draw_is_a_run_that_its_method_accepts(name: str, tiny_data: Any) -> None:
    made = search(name)
    made.check()
    facts = DataFacts.of(tiny_data)
    rng = np.random.default_rng(0)
    for _ in range(5):
        spec = made.trial_spec(made.draw_that_fits(facts, rng), facts)
        check(spec).check(tiny_data)
        assert spec.epsilon == made.epsilon


@pytest.mark.parametrize("name", methods.table())
def test_the_usual_value_lies_within_what_is_searched(name: str) -> None:
    usual = methods.find(name)()
    for key, dimension in load_space(name).items():
        value = getattr(usual, key, None)
        if value is None:
            continue
        values = getattr(dimension, "values", None)
        if values is not None:
            assert value in values, key
        else:
            assert dimension.low <= value <= dimension.high, key  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CHARGED)
@pytest.mark.parametrize("charge", ["select", "compose"])
def test_a_search_over_it_can_be_charged(name: str, charge: Any) -> None:
    """All but continual, whose scores after every task cannot be private."""
    search(name, charge=charge, proxy=None).check()


def test_two_draws_differ() -> None:
    rng = np.random.default_rng(0)
    assert draw(load_space("dp-sgd"), rng) != draw(load_space("dp-sgd"), rng)
