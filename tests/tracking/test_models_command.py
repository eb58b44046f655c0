from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dpray.cli import main
from dpray.tracking import record

NAME = "dpray-mnist-dp-sgd"


def said(capsys, *words: str) -> str:
    assert main(["models", *words]) == 0
    return capsys.readouterr().out


def test_the_table_has_a_line_a_version_best_first(store, make_result, capsys):
    record(make_result("run-1", accuracy=0.25))
    record(make_result("run-2", accuracy=0.75))
    head, first, second = said(capsys).splitlines()
    assert head.split()[:5] == ["MODEL", "VERSION", "EPSILON", "DELTA", "ACCURACY"]
    assert "0.75" in first and "0.25" in second
    assert head.index("CREATED") == first.index("20")


def test_an_empty_registry_and_an_empty_answer_are_friendly(store, make_result, capsys):
    assert "dpray run" in said(capsys)
    record(make_result())
    assert "Datasets: mnist. Methods: dp-sgd." in said(capsys, "--dataset", "cifar10")


def test_json_is_one_object_and_infinity_is_null(store, make_result, capsys):
    result = make_result()
    record(replace(result, card=replace(result.card, epsilon=None)))
    (row,) = json.loads(said(capsys, "--json"))["models"]
    assert row["epsilon"] is None and row["name"] == NAME and row["uri"] == f"models:/{NAME}/1"


@pytest.mark.parametrize("words", [("show", NAME, "--json"), ("--json", "show", NAME)])
def test_show_prints_the_card_as_text_or_json(store, make_result, capsys, words):
    record(make_result())
    assert "Privacy card of run-1" in said(capsys, "show", NAME)
    assert json.loads(said(capsys, *words))["card"]["run_id"] == "run-1"


def test_promote_says_what_the_version_is_called_now(store, make_result, capsys):
    record(make_result())
    assert said(capsys, "promote", f"{NAME}/1") == f"{NAME}/1 is now {NAME}@champion\n"
    assert "champion" in said(capsys)


def test_a_mistake_is_one_line_and_exit_code_2(store, make_result, capsys):
    record(make_result(for_tests=True))
    for words in (("show", "dpray-mnist-dp-sdg"), ("promote", f"{NAME}/1")):
        assert main(["models", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
