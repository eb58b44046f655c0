from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpray.errors import BadInput, NotPrivate, TrackingFailed
from dpray.evaluation.metrics import Metric, Source
from dpray.execute import Result
from dpray.tracking import record
from dpray.tracking.metrics import log_metrics, loggable
from dpray.tracking.register import model_name, register
from dpray.tracking.store import connect, experiment_id, tracking_uri

MakeResult = Callable[..., Result]


def the_run(client):
    (run,) = client.search_runs([experiment_id(client)])
    return run


def files_of(home: Path) -> list[Path]:
    return [path for path in (home / "mlflow").rglob("*") if path.is_file()]


def test_a_recorded_run_has_its_params_metrics_and_artefacts(store, make_result: MakeResult):
    result = make_result()
    result.folder.picture.write_bytes(b"a picture")
    assert record(result) == "models:/dpray-mnist-dp-sgd/1"
    client = connect()
    run = the_run(client)
    assert run.info.run_name == "run-1" and run.data.tags["dpray.run_id"] == "run-1"
    assert run.info.status == "FINISHED"
    assert run.data.params["dataset"] == "mnist" and run.data.params["noise_multiplier"] == "4.0"
    assert run.data.metrics["test_accuracy"] == 0.5
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        *("spec.json", "card.json", "card.txt", "result.json", "ledger.json", "picture.png"),
    }


def test_defaults_of_the_method_are_params_too(store, make_result: MakeResult):
    record(make_result())
    params = the_run(connect()).data.params
    assert {"batch_size", "clip_norm"} <= set(params)


def test_the_model_version_carries_the_privacy_tags(store, make_result: MakeResult):
    result = make_result(accuracy=0.75)
    record(result)
    tags = connect().get_model_version("dpray-mnist-dp-sgd", "1").tags
    assert float(tags["epsilon"]) == result.card.epsilon
    assert float(tags["accuracy"]) == 0.75
    assert tags["fit_for_release"] == "true" and tags["run_id"] == "run-1"
    assert tags["kind"] == "classifier" and tags["covers"] == "one run"
    assert tags["adjacency"] == "add-or-remove-one" and float(tags["delta"]) == 1e-5


def test_no_privacy_is_an_infinite_epsilon_on_the_version(store, make_result: MakeResult):
    result = make_result()
    card = replace(result.card, epsilon=None, fit_for_release=False, reasons_against=("no noise",))
    record(replace(result, card=card))
    tags = connect().get_model_version("dpray-mnist-dp-sgd", "1").tags
    assert tags["epsilon"] == "inf" and tags["fit_for_release"] == "false"


def test_recording_a_run_twice_records_it_once(store, make_result: MakeResult):
    result = make_result()
    assert record(result) == record(result)
    client = connect()
    assert len(client.search_runs([experiment_id(client)])) == 1
    assert len(client.search_model_versions("name = 'dpray-mnist-dp-sgd'")) == 1


def test_a_recording_that_broke_is_marked_and_taken_up_again(
    store, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
):
    def broken(*args: object) -> None:
        raise OSError("the network went away")

    result = make_result()
    with monkeypatch.context() as patch:
        patch.setattr("dpray.tracking.register._save", broken)
        with pytest.raises(TrackingFailed, match="the network went away"):
            record(result)
    assert the_run(connect()).info.status == "FAILED"
    assert record(result) == "models:/dpray-mnist-dp-sgd/1"
    assert the_run(connect()).info.status == "FINISHED"


@pytest.mark.parametrize("source", [Source.PRIVATE, "cost", "somewhere", None])
def test_a_metric_without_a_public_source_is_refused_by_name(source):
    with pytest.raises(NotPrivate, match="train_loss"):
        loggable([Metric("epsilon", 1.0, Source.LEDGER), Metric("train_loss", 0.5, source)])


def test_a_private_metric_stops_the_record_before_anything_is_logged(
    store, make_result: MakeResult
):
    with pytest.raises(NotPrivate, match="test_accuracy"):
        record(make_result(source=Source.PRIVATE))
    client = connect()
    assert client.search_runs([experiment_id(client)]) == []


def test_a_batch_with_one_private_metric_logs_none_of_it(store, make_result: MakeResult):
    record(make_result())
    client = connect()
    run = the_run(client).info.run_id
    with pytest.raises(NotPrivate):
        log_metrics(
            client, run, [Metric("fid", 1.0, Source.PUBLIC_TEST), Metric("x", 1.0, Source.PRIVATE)]
        )
    assert "fid" not in client.get_run(run).data.metrics


def test_what_is_not_a_release_is_refused_by_type(store, make_result: MakeResult):
    module = make_result().release.module
    with pytest.raises(NotPrivate, match="ImageClassifier is not a Release"):
        register(module, client=connect(), mlflow_run="-", name="dpray-x", tags={})
    with pytest.raises(NotPrivate, match="ImageClassifier is not a Release"):
        record(replace(make_result("run-2"), release=module))


def test_nothing_of_the_private_side_is_in_the_store(
    store, own_home: Path, make_result: MakeResult
):
    result = make_result()
    (result.folder.checkpoints).mkdir()
    (result.folder.checkpoints / "step-1").write_bytes(b"raw gradients of somebody")
    record(result)
    key = result.folder.key.read_bytes()[1:]
    secrets = (key, key.hex().encode(), b"raw gradients of somebody")
    stored = files_of(own_home)
    assert len(stored) > 8
    for path in stored:
        assert not any(secret in path.read_bytes() for secret in secrets), path
        assert "private" not in path.parts


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_of_the_private_side_is_no_artefact(
    store, tmp_path: Path, make_result: MakeResult, linked: bool
):
    result = make_result()
    path = result.folder.ledger
    if linked:
        path = tmp_path / "harmless.txt"
        path.symlink_to(result.folder.ledger)
    with pytest.raises(NotPrivate, match="private side"):
        record(result, extra_artifacts=[path])
    with pytest.raises(BadInput, match="not a file"):
        record(result, extra_artifacts=[result.folder.path])


def test_extra_files_are_recorded_beside_the_rest(store, tmp_path: Path, make_result: MakeResult):
    (tmp_path / "plot.json").write_text(json.dumps([1, 2]))
    record(make_result(), extra_artifacts=[tmp_path / "plot.json"])
    client = connect()
    (file,) = client.list_artifacts(the_run(client).info.run_id, "extra")
    assert file.path == "extra/plot.json"


def test_the_model_is_weights_and_a_recipe_and_no_pickle(
    store, own_home: Path, make_result: MakeResult
):
    record(make_result())
    names = {path.name for path in files_of(own_home)}
    assert {"MLmodel", "release.json", "weights.safetensors"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth"))]
    (mlmodel,) = (own_home / "mlflow").rglob("MLmodel")
    assert "loader_module: dpray.tracking.pyfunc" in mlmodel.read_text()
    assert "cloudpickle" not in mlmodel.read_text()


def test_a_path_is_registered_by_its_stem_alone():
    assert model_name("/secret place/my scans.npz", "dp-sgd") == "dpray-my-scans-dp-sgd"
    assert tracking_uri().startswith("sqlite:///")
