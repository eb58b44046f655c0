from __future__ import annotations

import pytest
import torch

from dpray.errors import BadInput, NotPrivate
from dpray.tracking import record
from dpray.tracking.registry import card_of, find, list_models, load, promote
from dpray.tracking.store import connect

NAME = "dpray-mnist-dp-sgd"


@pytest.fixture
def three(store, make_result):
    """Version 1 and 2 of one model, and another model."""
    record(make_result("run-1", accuracy=0.6, noise=4.0))
    record(make_result("run-2", accuracy=0.9, noise=1.0))
    record(make_result("run-3", accuracy=0.7, noise=8.0, dataset="digits", for_tests=True))


def runs(**words) -> list[str]:
    return [row.run_id for row in list_models(**words)]


def test_models_are_listed_best_first_by_each_order(three):
    assert runs() == ["run-2", "run-3", "run-1"]
    assert runs(sort="epsilon") == ["run-3", "run-1", "run-2"]
    assert runs(sort="created") == ["run-3", "run-2", "run-1"]
    with pytest.raises(BadInput, match="choose from: accuracy, created, epsilon"):
        list_models(sort="size")


def test_models_are_filtered_by_dataset_method_epsilon_and_fitness(three):
    assert runs(dataset="digits") == ["run-3"]
    assert runs(method="dp-sgd", dataset="mnist") == ["run-2", "run-1"]
    assert runs(method="sgd") == []
    limit = find(f"{NAME}/1").epsilon
    assert runs(max_epsilon=limit) == ["run-3", "run-1"]
    assert runs(fit_only=True) == ["run-2", "run-1"]


def test_a_row_says_what_the_card_says(three):
    row = find(f"{NAME}/2")
    card = card_of(row)
    assert (row.epsilon, row.delta, row.adjacency) == (card.epsilon, card.delta, card.adjacency)
    assert (row.run_id, row.method, row.dataset) == (card.run_id, card.method, card.dataset)
    assert (row.accuracy, row.version, row.uri) == (0.9, 2, f"models:/{NAME}/2")


def test_a_reference_is_a_name_a_version_or_an_alias(three):
    assert find(NAME).version == find(f"{NAME}/latest").version == 2
    promote(f"{NAME}/1")
    assert find(NAME).version == 1 and find(NAME).aliases == ("champion",)
    assert find(f"{NAME}@champion").version == find(f"models:/{NAME}@champion").version == 1
    promote(f"{NAME}/2", "best")
    assert find(NAME).version == 2


def test_what_is_not_there_is_answered_with_what_is(three):
    answers = {
        "dpray-mnits-dp-sgd": f"did you mean '{NAME}'",
        f"{NAME}/9": "choose from: 1, 2",
        f"{NAME}/first": "choose from: 1, 2",
        f"{NAME}@champoin": "no alias",
        f"{NAME}/1@champion": "not of the form",
        "it's": "choose from",
    }
    for reference, message in answers.items():
        with pytest.raises(BadInput, match=message):
            find(reference)


def test_an_empty_registry_says_so(store):
    assert list_models() == []
    with pytest.raises(BadInput, match="no model is registered"):
        find(NAME)


def test_promotion_of_what_is_unfit_for_release_needs_force(three):
    with pytest.raises(NotPrivate, match="insecure test key"):
        promote("dpray-digits-dp-sgd/1")
    assert find("dpray-digits-dp-sgd").aliases == ()
    assert promote("dpray-digits-dp-sgd/1", force=True).aliases == ("champion",)


def test_promotion_trusts_the_card_and_not_the_tag(three):
    connect().set_model_version_tag("dpray-digits-dp-sgd", "1", "fit_for_release", "true")
    with pytest.raises(NotPrivate, match="not fit for release"):
        promote("dpray-digits-dp-sgd/1")


def test_a_loaded_release_is_the_one_that_was_recorded(store, make_result):
    result = make_result()
    loaded = load(record(result))
    pixels = torch.rand(6, 1, 4, 4)
    assert type(loaded) is type(result.release)
    assert torch.equal(loaded.probabilities(pixels), result.release.probabilities(pixels))


def test_a_model_of_somebody_else_is_not_listed(three):
    client = connect()
    client.create_registered_model("dpray-alike")
    client.create_model_version("dpray-alike", source="s3://elsewhere/model")
    assert len(list_models()) == 3
    with pytest.raises(BadInput, match="no versions"):
        find("dpray-alike")
