"""The command line: every wrong input is one line and exit code 2; --json is one object."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpray import cli
from dpray.cli import _COMMANDS, main
from dpray.runs import runs_folder

pytestmark = pytest.mark.usefixtures("own_store")

QUICK = ["--set", "features=pixels", "batch_size=400", "steps=20", "lr=2", "--quiet"]
RUN = ["run", "dp-sgd", "--dataset", "digits", "--epsilon", "3", "--on", "here", *QUICK]


def test_run_prints_exactly_one_json_object_with_the_promised_keys(capsys):
    assert main([*RUN, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert {
        *("run_id", "method", "dataset", "epsilon", "delta", "noise_multiplier", "steps"),
        *("sample_rate", "metrics", "model", "card", "core_seconds"),
    } <= set(value)
    assert value["metrics"]["test_accuracy"] > 0.5
    assert value["model"] == "models:/dpray-digits-dp-sgd/1"
    assert value["epsilon"] <= 3
    assert main(["card", "verify", value["card"]]) == 0
    assert "verified" in capsys.readouterr().out


def test_several_runs_report_mean_spread_and_the_cost_of_all(capsys):
    assert main([*RUN, "--no-tracking", "--runs", "2", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["metrics"]["test_accuracy_std"] >= 0
    assert len(set(value["run_ids"])) == 2
    # Two releases cost more than one, and less than twice.
    assert value["epsilon"] * 1.2 < value["epsilon_of_all_runs"] < value["epsilon"] * 2


def test_a_person_sees_accuracy_epsilon_model_card_and_picture(capsys):
    assert main([*RUN, "--no-tracking"]) == 0
    out = capsys.readouterr().out
    for words in ("test accuracy", "epsilon", "card.txt", "picture.png"):
        assert words in out
    picture = next(runs_folder().glob("*/picture.png"))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plan_solves_for_what_is_left_out(capsys):
    words = ["plan", "--records", "60000", "--batch-size", "256", "--json"]
    assert main([*words, "--steps", "3515", "--noise-multiplier", "1.1"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["epsilon"] == pytest.approx(1.1337, abs=2e-3)
    assert value["epsilon_by_accountant"]["rdp"] == pytest.approx(1.2811, abs=1e-3)
    assert main([*words, "--epochs", "15", "--epsilon", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["noise_multiplier"] == pytest.approx(1.185, abs=3e-3)


def test_plan_prints_a_table_over_epochs(capsys):
    assert main(["plan", "--records", "1000", "--batch-size", "100", "--epochs", "5",
                 "--noise-multiplier", "2"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "noise multiplier  2.0000" in out
    assert len(out.splitlines()) > 12


@pytest.mark.parametrize(
    "words", [["methods"], ["methods", "dp-sgd"], ["data", "list"], ["models"]]
)
def test_looking_around_works(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "dp-sdg", "--dataset", "digits", "--epsilon", "1"], "did you mean 'dp-sgd'"),
        (["run", "dp-sgd", "--dataset", "mnits", "--epsilon", "1"], "mnist"),
        (["run", "dp-sgd", "--dataset", "no/such.npz", "--epsilon", "1"], "no/such.npz"),
        (["run", "dp-sgd", "--dataset", "digits"], "needs a budget"),
        (["run", "dp-sgd", "--epsilon", "1"], "--dataset"),
        (["run"], "name a method"),
        (["run", "dp-sgd", "--dataset", "digits", "--epsilon", "0"], "out of range"),
        (["run", "dp-sgd", "--dataset", "digits", "--epsilon", "21"], "--insist"),
        (["run", "dp-sgd", "--dataset", "digits", "--epsilon", "x"], "invalid float"),
        (["run", "dp-sgd", "--dataset", "digits", "--epsilon", "1", "--delta", "2"], "delta"),
        ([*RUN, "--set", "colour=red"], "no setting of dp-sgd 'colour'"),
        ([*RUN, "--set", "lr"], "name=value"),
        ([*RUN, "--set", "lr=-1"], "above 0"),
        ([*RUN, "--set", "lr=inf"], "expected float"),
        ([*RUN, "--set", "lr=1e39"], "below 1e+06"),
        ([*RUN, "--set", "momentum=1"], "below 1"),
        (["run", "dp-sgd", "--dataset", "digits", "--epsilon", "nan"], "out of range"),
        (["run", "dp-sgd", "--dataset", "digits", "--noise-multiplier", "1e-5"], "no privacy"),
        (
            ["plan", "--records", "600", "--batch-size", "6", "--steps", "9", "--epsilon", "inf"],
            "finite",
        ),
        (
            ["plan", "--records", "600", "--batch-size", "6", "--epochs", "inf", "--epsilon", "1"],
            "--epochs",
        ),
        (["run", "--spec", "/"], "cannot read"),
        ([*RUN, "--runs", "0"], "--runs"),
        ([*RUN, "--workers", "2"], "need --on ray"),
        ([*RUN, "--on", "ray", "--workers", "0"], "--workers"),
        ([*RUN, "--on", "ray", "--address", "127.0.0.1:1", "--no-tracking"], "127.0.0.1:1"),
        (["run", "sgd", "--dataset", "digits", "--epsilon", "1"], "adds no noise"),
        (["run", "--spec", "no-such.json"], "no-such.json"),
        (["resume", "no-such-run"], "no run"),
        (["plan", "--records", "0", "--epsilon", "1"], "--records"),
        (["plan", "--records", "10", "--batch-size", "20", "--epsilon", "1"], "--batch-size"),
        (["plan", "--records", "1000", "--batch-size", "20", "--epsilon", "1"], "leave one out"),
        (["card", "verify", "no-such.json"], "no-such.json"),
        (["data", "fetch", "imagenet"], "choose from"),
        (["models", "show", "nothing"], "nothing"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_wrong_input_is_one_line_and_exit_code_2(words, message, capsys):
    try:
        code = main([*words])
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("warning")]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(runs_folder().glob("*/private/ledger.jsonl"))


def test_a_corrupt_file_of_ones_own_is_one_line(tmp_path, capsys):
    path = tmp_path / "mine.npz"
    np.savez(path, images=np.zeros((4, 8, 8)), labels=np.arange(4))
    path.write_bytes(path.read_bytes()[:100])
    assert main(["run", "dp-sgd", "--dataset", str(path), "--epsilon", "1", "--on", "here"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unreachable_mlflow_is_found_before_training_starts(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert main(RUN) == 2
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert not list(runs_folder().glob("*"))


def test_a_specification_file_runs(tmp_path, capsys):
    spec = {"method": "dp-sgd", "dataset": "digits", "epsilon": 2.0,
            "settings": {"features": "pixels", "steps": 3, "batch_size": 200}}  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    words = ["run", "--spec", str(tmp_path / "spec.json"), "--on", "here", "--quiet"]
    assert main([*words, "--no-tracking", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3


BAD_SPECIFICATIONS = [
    *("[1]", "{", '"x"', '{"method": "x", "dataset": "y", "settings": [1]}'),
    '{"method": "dp-sgd", "dataset": "digits", "adjacency": "zz"}',
    '{"method": "dp-sgd", "dataset": "digits", "epsilon": "x"}',
]


@pytest.mark.parametrize("content", BAD_SPECIFICATIONS)
def test_a_bad_specification_file_is_one_line(tmp_path, capsys, content):
    (tmp_path / "spec.json").write_text(content)
    assert main(["run", "--spec", str(tmp_path / "spec.json"), "--on", "here"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_weights_that_are_not_numbers_are_refused(monkeypatch, capsys):
    from dpray.methods import dp_sgd

    def spoil(head, *_, **__):
        for p in head.parameters():
            p.grad = p.detach() * float("nan")

    monkeypatch.setattr(dp_sgd, "noisy_gradient", spoil)
    assert main([*RUN, "--no-tracking"]) == 2
    assert "diverged" in capsys.readouterr().err
    assert not list(runs_folder().glob("*/release"))


def test_the_python_interface_is_the_same_run(capsys):
    import dpray

    settings = {"features": "pixels", "steps": 5, "batch_size": 200}
    outcome = dpray.run("dp-sgd", data="digits", epsilon=3, settings=settings, track=False)
    assert outcome.metrics()["epsilon"] <= 3
    assert capsys.readouterr().out == ""


def test_control_c_leaves_a_run_that_can_be_resumed(monkeypatch, capsys):
    """A real process, a real signal: the run goes on where it stopped and is charged once."""
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0.2")
    words = ["run", "dp-sgd", "--dataset", "digits", "--noise-multiplier", "9", "--on", "here"]
    settings = ["--set", "features=pixels", "batch_size=300", "steps=600", "--no-tracking"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dpray", *words, *settings], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(runs_folder().glob("*/private/checkpoints/*.safetensors")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "dpray resume" in err
    assert "Traceback" not in err
    folder = next(runs_folder().glob("*"))
    charged = (folder / "private" / "ledger.jsonl").read_text()
    assert (folder / "private" / "key").exists()
    words = ["resume", folder.name, "--on", "here", "--quiet", "--no-tracking", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 600
    assert (folder / "private" / "ledger.jsonl").read_text() == charged
    assert not (folder / "private" / "key").exists()


def test_a_full_disk_is_one_line_and_leaves_no_charge(monkeypatch, capsys):
    """The system takes ten bytes of the ledger's line and no more: nothing may be read."""
    from dpray.privacy.ledger import Ledger

    honest, before = Ledger._append, []

    def on_a_full_disk(self, entry):
        before.append((self.path, self.path.read_bytes()))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[0][1]) + 10, limits[1]))
        try:
            honest(self, entry)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(Ledger, "_append", on_a_full_disk)
    assert main([*RUN, "--no-tracking"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    path, content = before[0]
    assert path.read_bytes() == content


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_that_help_lists_is_there(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: dpray {command}" in capsys.readouterr().out


def test_every_file_of_a_command_is_listed():
    folder = Path(cli.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "\ndef add_parser(" in path.read_text()}
    assert files == {file for file, _ in _COMMANDS.values()}


def test_help_comes_without_waiting_for_torch():
    script = (
        "import sys; from dpray.cli import make_parser; text = make_parser().format_help();"
        "make_parser(['jobs']); print('resume' in text, {'torch', 'ray', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "True set()\n", done.stderr
