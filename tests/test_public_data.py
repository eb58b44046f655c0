"""A run on some classes, and a run that reads public data: its words, its card, its refusals."""

import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from dpray import methods
from dpray.api import with_public_words
from dpray.cli import main
from dpray.errors import BadInput, CannotResume
from dpray.execute import check, execute
from dpray.methods.sgd import Sgd
from dpray.runs import runs_folder
from dpray.spec import RunSpec, dataset_word

QUICK = {"model": "linear", "features": "pixels", "epochs": 1}


@dataclass(frozen=True, kw_only=True)
class ReadsPublicData(Sgd):
    name: ClassVar[str] = "reads-public-data"
    public_data: ClassVar[str] = "classes"

    def fit(self, data, run):
        run.facts["public classes"] = len(data.public.class_names)
        return super().fit(data, run)


@pytest.fixture(autouse=True)
def reader(monkeypatch):
    monkeypatch.setitem(methods._TABLE, "reads-public-data", ReadsPublicData)


def spec(dataset: str, public: str | None = None) -> RunSpec:
    return RunSpec(method="reads-public-data", dataset=dataset, public=public, settings=QUICK)


def save_noise(path, seed: int) -> str:
    images = np.random.default_rng(seed).integers(0, 256, (90, 28, 28), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(90) % 3)
    return str(path)


def test_a_specification_without_public_data_has_the_digest_it_had_before_there_was_any():
    def digest(**words) -> str:
        one = RunSpec(method="dp-sgd", dataset="digits", epsilon=3.0, **words)
        return hashlib.sha256(json.dumps(one.to_json(), sort_keys=True).encode()).hexdigest()

    before = "1bbb177879864c560d61a0f8f483650bae1d60bb2b0bdeddd24f264bd382f1c5"
    assert digest(settings={"steps": 30}) == before
    assert digest(settings={"steps": 30}, public="mnist") != before


def test_a_specification_with_public_data_goes_to_json_and_back():
    said = spec("digits", "fashion-mnist")
    assert RunSpec.from_json(json.loads(json.dumps(said.to_json()))) == said
    for wrong in ("", 3):
        with pytest.raises(BadInput, match="give a name or a path as text"):
            spec("digits", wrong)


def test_a_run_on_some_classes_learns_them_and_says_so():
    result = execute(RunSpec(method="sgd", dataset="digits:3,7@rest", settings=QUICK))
    assert result.release.class_names == ("3", "7")
    assert result.card.dataset == "digits:3,7@rest"
    assert result.card.treated_as_public["class list"] == ["3", "7"]
    assert "public data" not in result.card.treated_as_public
    assert "digits-3-7-rest" in result.run_id


def test_a_run_writes_out_its_public_data_and_the_card_repeats_them():
    result = execute(with_public_words(spec("digits")))
    kept = result.folder.read_spec()
    assert (kept.dataset, kept.public) == ("digits:0,2,4,6,8@rest", "digits:1,3,5,7,9@rest")
    assert with_public_words(kept) == kept
    facts = result.card.treated_as_public
    assert facts["public data"].startswith("digits:1,3,5,7,9@rest, ")
    assert "declared public" in facts["labelling records"]


def test_the_command_takes_a_class_list_and_says_what_it_declares_public(capsys):
    words = ["run", "reads-public-data", "--dataset", "digits", "--public", "1,3,5"]
    words += ["--set", "features=pixels", "epochs=1", "--on", "here", "--no-tracking", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    assert (shown["dataset"], shown["public"]) == (
        "digits:0,2,4,6,7,8,9@rest",
        "digits:1,3,5@rest",
    )
    assert "note: public data: digits:1,3,5@rest, " in captured.err
    assert "note: labelling records: " in captured.err
    assert (runs_folder() / shown["run_id"] / "picture.png").exists()


def test_a_relative_path_of_public_data_is_kept_as_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save_noise(tmp_path / "faces.npz", 0)
    assert with_public_words(spec("digits", "faces.npz:0,2")).public == f"{path}:0,2"
    own = spec(dataset_word("faces.npz"), "1")
    assert with_public_words(own).dataset == f"{path}:0,2"
    assert with_public_words(own).public == f"{path}:1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sgd", "--dataset", "digits", "--public", "1,3"], "sgd reads no public data: leave out"),
        (["sgd", "--dataset", "digits:0,1@odd"], "choose from: labelling, rest"),
        (["sgd", "--dataset", "digits:0,11"], "digits has no class 11; choose from: 0 (0)"),
        (["reads-public-data", "--dataset", "digits", "--public", "digits"], "share records"),
        (["--spec", "some.json", "--public", "1,3"], "give --spec, or a method"),
    ],
)
def test_words_that_cannot_be_run_are_one_line_and_leave_no_run(words, message, capsys):
    assert main(["run", *words, "--on", "here", "--no-tracking"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 and message in captured.err
    assert not list(runs_folder().glob("*"))


def test_a_method_that_reads_public_data_is_not_started_without():
    check(spec("digits"))
    with pytest.raises(BadInput, match="give --public"):
        execute(spec("digits"))


def test_changed_public_data_on_resume_are_refused(monkeypatch, tmp_path):
    class Stop(Exception):
        pass

    def stop(self, data, run):
        raise Stop

    public = save_noise(tmp_path / "faces.npz", 0)
    with monkeypatch.context() as patch:
        patch.setattr(ReadsPublicData, "fit", stop)
        with pytest.raises(Stop):
            execute(spec("digits:0,1", public), run_id="stopped")
    save_noise(tmp_path / "faces.npz", 1)
    with pytest.raises(CannotResume, match="dataset"):
        execute(spec("digits:0,1", public), run_id="stopped", resume=True)
    save_noise(tmp_path / "faces.npz", 0)
    execute(spec("digits:0,1", public), run_id="stopped", resume=True)
