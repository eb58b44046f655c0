from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpray.cli import report
from dpray.errors import BadInput
from dpray.evaluation.metrics import Metric, Source
from dpray.tracking import record
from dpray.tracking.history import history
from dpray.tracking.store import connect

PNG = b"\x89PNG\r\n\x1a\n and the rest"


def run_report(*words: str) -> int:
    parser = argparse.ArgumentParser()
    report.add_parser(parser.add_subparsers())
    args = parser.parse_args(["report", *words])
    return args.handler(args)


def mlflow_run_of(run_id: str):
    client = connect()
    experiment = client.get_experiment_by_name("dpray").experiment_id
    (found,) = client.search_runs([experiment], f"tags.`dpray.run_id` = '{run_id}'")
    return client, found.info


def test_a_recorded_run_comes_back_whole(store, make_result):
    result = make_result("run-1", accuracy=0.25, noise=3.0)
    picture = result.folder.path / "samples.png"
    picture.write_bytes(PNG)
    record(result, extra_artifacts=[picture])
    (run,) = history()
    assert (run.run_id, run.method, run.dataset, run.seed) == ("run-1", "dp-sgd", "mnist", 0)
    assert run.kind == "classifier"
    assert run.metrics == {"test_accuracy": 0.25, "epsilon": result.card.epsilon}
    assert run.card.to_json() == json.loads(json.dumps(result.card.to_json()))
    assert run.samples == PNG
    # Defaults of the method are settings; fields of the specification are not.
    assert "batch_size" in run.settings and "noise_multiplier" not in run.settings


def test_a_metric_without_a_public_source_is_left_out(store, make_result):
    record(make_result("run-1"))
    client, info = mlflow_run_of("run-1")
    client.log_metric(info.run_id, "train_loss", 0.123)
    assert "train_loss" not in history()[0].metrics


@pytest.mark.parametrize(
    ("metric", "kind"), [("mlp_accuracy", "synthesizer"), ("test_accuracy", "classifier")]
)
def test_a_run_recorded_before_kinds_were_is_known_by_its_metrics(
    metric, kind, store, make_result, tmp_path
):
    result = make_result("run-1")
    record(replace(result, metrics=(Metric(metric, 0.5, Source.PUBLIC_TEST),)))
    client, info = mlflow_run_of("run-1")
    told = {"run_id": "run-1", "metrics": [[metric, 0.5, Source.PUBLIC_TEST.value]]}
    (tmp_path / "result.json").write_text(json.dumps(told))
    client.log_artifact(info.run_id, str(tmp_path / "result.json"))
    assert history()[0].kind == kind


def test_a_paid_noisy_count_is_known_as_one(store, make_result):
    record(make_result("run-1", source=Source.NOISY_HOLD_OUT))
    assert history()[0].noisy == {"test_accuracy"}


def test_failed_runs_and_runs_of_others_are_not_history(store, make_result):
    record(make_result("run-1"))
    record(make_result("run-2"))
    client, info = mlflow_run_of("run-2")
    client.set_terminated(info.run_id, "FAILED")
    other = client.create_run(info.experiment_id)
    client.set_terminated(other.info.run_id, "FINISHED")
    assert [run.run_id for run in history()] == ["run-1"]


def test_a_run_whose_card_is_damaged_is_named_and_left_out(store, make_result, tmp_path):
    record(make_result("run-1"))
    record(make_result("run-2"))
    client, info = mlflow_run_of("run-1")
    (tmp_path / "card.json").write_text("{")
    client.log_artifact(info.run_id, str(tmp_path / "card.json"))
    said: list[str] = []
    assert [run.run_id for run in history(say=said.append)] == ["run-2"]
    assert len(said) == 1 and "run-1 is left out" in said[0]


def test_runs_are_chosen_by_dataset_and_a_wrong_name_lists_the_right_ones(store, make_result):
    record(make_result("run-1", dataset="mnist"))
    record(make_result("run-2", dataset="/far/away/scans.npz"))
    assert [run.run_id for run in history(dataset="scans.npz")] == ["run-2"]
    with pytest.raises(BadInput, match="choose from: mnist, scans"):
        history(dataset="cifar10")


def test_nothing_recorded_says_how_to_make_a_run(store, make_result):
    with pytest.raises(BadInput, match="dpray run dp-sgd"):
        history()
    record(make_result())
    with pytest.raises(BadInput, match=r"no experiment 'dprey' \(did you mean 'dpray'"):
        history("dprey")


def test_the_command_writes_a_page_of_what_was_recorded(store, make_result, capsys, tmp_path):
    for number, name in enumerate(("run-1", "run-2")):
        result = make_result(name, accuracy=0.5 + number / 10, dataset="/a/<script>x.npz")
        spec = replace(result.spec, seed=number)
        metrics = (*result.metrics, Metric("core_seconds", 90.0, Source.COST))
        record(replace(result, spec=spec, metrics=metrics))
    assert run_report("--out", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert printed == f"{tmp_path / 'out' / 'index.html'}\n"
    page = Path(printed.strip()).read_text()
    compared = (tmp_path / "out" / "comparison.html").read_text()
    assert "55.00" in compared and "classifier" in compared and "<script" not in compared
    assert "55.00" in page and "± 7.07" in page and "<script" not in page
    assert 'href="cards/run-1.txt"' in page and 'href="cards/run-2.json"' in page


def test_nothing_of_the_private_side_is_on_the_page(store, make_result, own_home, tmp_path):
    result = make_result("run-1", dataset="mnist")
    secret = result.folder.key.read_bytes().hex()
    record(result)
    run_report("--out", str(tmp_path / "out"), "--dataset", "mnist")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 4  # two pages, and the card in two forms
    for path in files:
        content = path.read_text()
        assert str(own_home) not in content and "/private" not in content
        assert secret not in content


def test_out_that_is_a_file_is_refused_before_the_store_is_read(tmp_path, own_home):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(BadInput, match="is a file"):
        run_report("--out", str(tmp_path / "taken"))
    assert not (own_home / "mlflow").exists()
