"""What is wrong with a search is one clear line, and nothing is charged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpray.errors import BadInput
from dpray.privacy.accounting import Adjacency
from dpray.search.refusals import check_data
from dpray.search.space import choice, log_uniform, uniform, whole
from dpray.search.trials import SearchSpec

SPACE = {"lr": log_uniform(0.1, 10.0), "noise_multiplier": choice(2.0, 4.0)}
SEARCH = SearchSpec(
    method="dp-sgd", dataset="mnist", charge="compose", trials=40, epsilon=1.0, space=SPACE
)
SGD: dict[str, Any] = {"method": "sgd", "epsilon": None, "space": {"lr": log_uniform(1e-4, 1e-2)}}
AUGM: dict[str, Any] = {
    "method": "augm",
    "dataset": "mnist@rest",
    "public": "mnist@labelling",
    "charge": "public",
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sampler": "tpe", "scheduler": "asha"},
        {"charge": "select", "law": "logarithmic", "cap": 500},
        {"charge": "public", "proxy": "fashion-mnist", "sampler": "tpe", "scheduler": "median"},
        {"charge": "public", "proxy": "mnist:1,3", "dataset": "mnist:0,2"},
        {"charge": "public", "proxy": "mnist@labelling", "dataset": "mnist@rest"},
        {"charge": "public", "proxy": "drawn.npz"},
        {"charge": "none"},
        {"charge": "none", **SGD},
        {**AUGM, "proxy": "fashion-mnist"},
        {
            "charge": "public",
            "proxy": "digits",
            "method": "continual",
            "space": {"learner_settings": choice("", "clip_norm=0.2")},
        },
    ],
)
def test_what_a_search_may_be(change: dict) -> None:
    kind = replace(SEARCH, **change).check()
    assert kind.name == change.get("method", "dp-sgd")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"charge": None}, "say who pays .*no default; choose from: public .*none"),
        ({"charge": "free"}, "no charge 'free'"),
        ({"trials": 0}, "trials 0 is out of range"),
        ({"trials": 2.5}, "trials 2.5 is out of range"),
        ({"trials": 20_000, "charge": "select"}, "mean of 20000 trials is out of range"),
        ({"method": "dp-gsd"}, "no method 'dp-gsd'.*did you mean 'dp-sgd'"),
        ({"epsilon": None}, "needs --epsilon"),
        ({"epsilon": 50.0}, "epsilon 50 protects nobody"),
        ({"space": {"rate": uniform(0, 1)}}, "no setting of dp-sgd to search over 'rate'"),
        ({"settings": {"rate": 1}}, "no setting of dp-sgd 'rate'"),
        ({"settings": {"lr": 1.0}}, "lr=1.0 is fixed and the space searches over lr"),
        ({"settings": {"steps": 9}}, "steps is fixed and .* noise_multiplier"),
        ({"space": {**SPACE, "epochs": choice(1, 2)}}, "epochs is in the space and"),
        (
            {"method": "dp-vae", "settings": {"class_model": "noisy-statistics"}},
            "steps do not follow from noise_multiplier",
        ),
        ({"charge": "select", "sampler": "tpe"}, "tpe chooses .* by the scores of earlier trials"),
        ({"charge": "select", "scheduler": "asha"}, "asha stops a trial by the scores of others"),
        ({"charge": "select", "cap": 0}, "cap 0 is out of range"),
        ({"law": "geometric"}, "--law goes with --charge select"),
        ({"cap": 9}, "--cap goes with --charge select"),
        ({"law": "poisson", "charge": "select"}, "no law 'poisson'"),
        ({"sampler": "grid"}, "no sampler 'grid'"),
        ({"scheduler": "pbt"}, "no scheduler 'pbt'"),
        ({"charge": "public"}, "--charge public needs --proxy"),
        ({"proxy": "digits"}, "--proxy digits goes with --charge public"),
        ({"charge": "public", "proxy": "mnist"}, "the proxy mnist is the private dataset itself"),
        ({"charge": "public", "proxy": "mnist:0,1"}, "mnist:0,1 may hold its records"),
        ({**AUGM, "proxy": "mnist@rest"}, "is the private dataset itself"),
        (
            {**AUGM, "dataset": "mnist@labelling", "public": "digits", "proxy": "mnist@rest"},
            "the proxy mnist@labelling is the private dataset itself",
        ),
        ({**AUGM, "public": None, "proxy": "digits"}, "reads public data.*give --public"),
        ({"public": "digits"}, "dp-sgd reads no public data"),
        ({"dataset": "mnist@tuning"}, "trials are cut to @tuning by the search"),
        (SGD, "sgd adds no noise, so no charge covers"),
        ({"charge": "none", **SGD, "epsilon": 1.0}, "leave out --epsilon"),
        (
            {"method": "continual", "space": {"learner_settings": choice("", "spc=1")}},
            "continual is measured again and again",
        ),
        ({"adjacency": Adjacency.REPLACE}, "use add-or-remove-one"),
        ({"space": {"noise_multiplier": uniform(1, 4)}}, "noise_multiplier moves what a trial"),
        ({"space": {"batch_size": whole(1, 4000)}}, "drawn in 4,000 ways"),
    ],
)
def test_what_a_search_may_not_be_is_one_line(change: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        replace(SEARCH, **change).check()
    assert "\n" not in str(refusal.value)


def test_a_range_of_real_numbers_is_no_trouble_where_it_moves_no_cost() -> None:
    space = {"steps": whole(10, 9000, log=True), "bandwidth": log_uniform(0.05, 0.4)}
    replace(SEARCH, method="dp-merf", space=space).check()
    replace(SEARCH, charge="none", space={"noise_multiplier": uniform(1, 4)}).check()


def test_a_copy_of_the_private_dataset_is_no_proxy(tmp_path: Path) -> None:
    own, copy = tmp_path / "own.npz", tmp_path / "copy.npz"
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(own, images=images, labels=np.arange(60) % 2)
    shutil.copy(own, copy)
    settings = {"features": "pixels"}
    search = replace(SEARCH, charge="public", dataset=str(own), proxy=str(copy), settings=settings)
    search.check()  # by their names they are two
    with pytest.raises(BadInput, match="is the private dataset itself under another name"):
        check_data(search, print)
    other = replace(search, proxy="digits")
    assert check_data(other, print).num_classes == 10
