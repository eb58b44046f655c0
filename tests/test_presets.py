"""Presets: settings under a name, written out in full in the specification."""

import argparse
from dataclasses import dataclass
from typing import ClassVar

import pytest

import dpray
from dpray import methods
from dpray.cli import main, make_parser
from dpray.cli import run as run_command
from dpray.errors import BadInput
from dpray.methods.sgd import Sgd
from dpray.spec import RunSpec, with_preset

WORDS = ["run", "with-presets", "--dataset", "digits"]


@dataclass(frozen=True, kw_only=True)
class WithPresets(Sgd):
    name: ClassVar[str] = "with-presets"
    presets: ClassVar = {"laptop": {}, "paper": {"model": "mlp", "epochs": 60}}
    gpu_preset: ClassVar[str] = "paper"

    encoders: int = 10


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setitem(methods._TABLE, "with-presets", WithPresets)


def spec_of(*words: str) -> RunSpec:
    return run_command._spec(parse(*WORDS, *words))


def parse(*words: str) -> argparse.Namespace:
    return make_parser(words).parse_args(words)


def test_a_preset_is_written_out_and_what_was_set_outright_wins():
    spec = spec_of("--preset", "paper", "--set", "epochs=3", "lr=0.5")
    assert spec.settings == {"model": "mlp", "epochs": 3, "lr": 0.5}
    assert spec_of("--preset", "laptop").settings == {}
    assert RunSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("preset", "has_gpu", "settings"),
    [
        (None, False, {"lr": 0.5}),
        (None, True, {"lr": 0.5, "model": "mlp", "epochs": 60}),
        ("laptop", True, {"lr": 0.5}),
        ("paper", False, {"lr": 0.5, "model": "mlp", "epochs": 60}),
    ],
)
def test_the_preset_for_a_gpu_is_taken_where_there_is_one_and_none_is_named(
    preset, has_gpu, settings
):
    assert with_preset({"lr": 0.5}, WithPresets, preset, has_gpu) == settings
    assert with_preset({"lr": 0.5}, Sgd, None, has_gpu) == {"lr": 0.5}


def test_workers_with_gpus_count_as_a_gpu_and_it_is_said(capsys):
    assert spec_of("--gpus-per-worker", "1").settings == WithPresets.presets["paper"]
    assert "note: preset paper" in capsys.readouterr().err
    assert spec_of("--gpus-per-worker", "0").settings == {}
    assert spec_of("--gpus-per-worker", "1", "--preset", "laptop").settings == {}
    assert capsys.readouterr().err == ""


def test_encoders_is_short_for_a_setting_and_wins_over_a_preset(monkeypatch):
    monkeypatch.setattr(WithPresets, "presets", {"paper": {"encoders": 2500}})
    assert spec_of("--encoders", "7").settings == {"encoders": 7}
    assert spec_of("--encoders", "7", "--set", "encoders=7").settings == {"encoders": 7}
    assert spec_of("--encoders", "7", "--preset", "paper").settings == {"encoders": 7}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*WORDS, "--preset", "papre"], "did you mean 'paper'?); choose from: laptop, paper"),
        (["run", "sgd", "--dataset", "digits", "--preset", "paper"], "sgd has no presets"),
        (["run", "sgd", "--dataset", "digits", "--encoders", "3"], "sgd has no encoders"),
        ([*WORDS, "--encoders", "3", "--set", "encoders=4"], "--set encoders=4 differ"),
        ([*WORDS, "--encoders", "many"], "invalid int"),
        (["run", "--spec", "some.json", "--preset", "paper"], "give --spec, or a method"),
    ],
)
def test_a_preset_or_number_that_cannot_be_used_is_one_line(words, message, capsys):
    try:
        code = main(words)
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 and message in captured.err


def test_the_python_interface_takes_a_preset():
    small = {"model": "linear", "epochs": 1}
    outcome = dpray.run("with-presets", data="digits", preset="paper", settings=small, track=False)
    assert outcome.result.folder.read_spec().settings == small
    with pytest.raises(BadInput, match="no preset of with-presets 'big'"):
        dpray.run("with-presets", data="digits", preset="big", track=False)


def test_the_methods_command_lists_presets_and_what_they_set(capsys):
    assert main(["methods", "with-presets"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["laptop", "the", "defaults", "-"] in shown
    assert ["paper", "model=mlp", "epochs=60", "where", "there", "is", "a", "GPU"] in shown
    assert main(["methods", "sgd"]) == 0
    assert "preset" not in capsys.readouterr().out


def test_a_submitted_command_keeps_its_preset():
    args = parse("submit", "--", *WORDS, "--preset", "paper", "--encoders", "3")
    assert args.words[-4:] == ["--preset", "paper", "--encoders", "3"]
