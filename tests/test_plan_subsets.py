"""`dpray plan --subsets`: a row for each way to draw, and wrong input is one line."""

import json
import math

import pytest

from dpray.cli import main

WORDS = ["plan", "--subsets", "40", "--steps", "20", "--epsilon", "3"]


def choices(words, capsys):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["choices"]


def test_every_way_to_draw_has_a_row_that_keeps_to_epsilon(capsys):
    rows = choices([*WORDS, "--parameters", "400"], capsys)
    assert [row["sampling"] for row in rows] == ["one-of-k", *["poisson"] * 3, "all-subsets"]
    assert [row["subsets_per_step"] for row in rows] == [1, 1, 4, 10, 40]
    for row in rows:
        assert 2.9 < row["epsilon"] <= 3
        signal = row["subsets_per_step"] / row["noise_multiplier"]
        assert row["accumulated_signal_over_noise"] == pytest.approx(math.sqrt(20) * signal)
        assert row["step_signal_over_noise"] == pytest.approx(signal / 20)
    assert rows[0]["noise_multiplier"] > rows[1]["noise_multiplier"]  # an absent subset adds zero


def test_a_person_sees_the_table_and_what_to_make_of_it(capsys):
    assert main(WORDS) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith("poisson") for line in out.splitlines()) == 3
    assert "accumulated signal/noise" in out
    assert "signal/noise of a step" not in out
    assert "One subset a step drowns in noise" in out
    assert "--encoder-state selected" in " ".join(out.split())


def test_steps_that_are_left_out_are_chosen_and_explained(capsys):
    words = ["plan", "--subsets", "1000", "--epsilon", "10", "--sampling", "all-subsets"]
    assert choices(words, capsys)[0]["steps"] == 75
    assert main(words) == 0
    assert "75000 subset gradients" in capsys.readouterr().out
    assert main([*words, "--steps", "75"]) == 0
    assert "75000 subset gradients" not in capsys.readouterr().out


def test_an_encoder_trained_when_selected_pays_for_known_draws(capsys):
    words = [*WORDS, "--subsets-per-step", "4"]
    hidden, scheduled, selected = (
        choices([*words, "--encoder-state", state], capsys)[0]["noise_multiplier"]
        for state in ("ephemeral", "scheduled", "selected")
    )
    assert hidden == scheduled == choices(words, capsys)[0]["noise_multiplier"]
    assert selected > 1.5 * hidden
    everyone = [*WORDS, "--sampling", "all-subsets"]
    secret_or_not = choices([*everyone, "--encoder-state", "selected"], capsys)
    assert secret_or_not == choices(everyone, capsys)  # there is no draw to remember


# reference/privacy.md section 4.4, small references
@pytest.mark.parametrize(
    ("state", "epsilons"), [("ephemeral", (0.4936, 0.3848)), ("selected", (6.6288, 6.6288))]
)
def test_a_given_noise_is_priced_by_the_reference(state, epsilons, capsys):
    words = ["plan", "--subsets", "100", "--steps", "500", "--noise-multiplier", "4"]
    rows = choices([*words, "--subsets-per-step", "1", "--encoder-state", state], capsys)
    assert [row["epsilon"] for row in rows] == pytest.approx(epsilons, abs=3e-3)


def test_records_only_warn_of_a_delta_that_is_too_large(capsys):
    words = [*WORDS, "--sampling", "all-subsets", "--records"]
    assert main([*words, "1000000"]) == 0
    many = capsys.readouterr()
    assert main([*words, "600"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert "warning: delta 1e-05 is above 1/N" in many.err


def test_help_teaches_with_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--help"])
    assert stop.value.code == 0
    assert "dpray plan --subsets 2500 --epsilon 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--subsets 1 --epsilon 1", "--subsets 1"),
        ("--subsets two --epsilon 1", "--subsets"),
        ("--subsets 10", "--epsilon"),
        ("--subsets 10 --epsilon 1 --noise-multiplier 1", "not both"),
        ("--subsets 10 --epsilon inf", "--epsilon inf"),
        ("--subsets 10 --epsilon -1", "--epsilon -1"),
        ("--subsets 10 --noise-multiplier 0", "--noise-multiplier 0"),
        ("--subsets 10 --epsilon 1 --steps 0", "--steps 0"),
        ("--subsets 10 --epsilon 1 --subsets-per-step 11", "at most 10"),
        ("--subsets 10 --epsilon 1 --subsets-per-step 0", "--subsets-per-step 0"),
        ("--subsets 10 --epsilon 1 --subsets-per-step nan", "--subsets-per-step nan"),
        ("--subsets 10 --epsilon 1 --subsets-per-step 2 --sampling one-of-k", "draws 1"),
        ("--subsets 10 --epsilon 1 --subsets-per-step 2 --sampling all-subsets", "draws 10"),
        ("--subsets 10 --epsilon 1 --sampling fixed", "one-of-k"),
        ("--subsets 10 --epsilon 1 --encoder-state warm", "ephemeral"),
        ("--subsets 10 --epsilon 1 --parameters 0", "--parameters 0"),
        ("--subsets 10 --epsilon 1 --delta 2", "delta 2"),
        ("--subsets 10 --epsilon 1 --records 0", "--records 0"),
        ("--subsets 10 --epsilon 1 --batch-size 5", "--batch-size does not go with --subsets"),
        ("--subsets 10 --epsilon 1 --epochs 5", "--epochs does not go with --subsets"),
        ("--records 600 --epsilon 1 --batch-size 6 --steps 9 --sampling poisson", "--sampling"),
        ("--epsilon 1 --batch-size 6 --steps 9", "arguments are required: --records"),
    ],
)
def test_a_wrong_input_is_one_line_and_exit_code_2(words, message, capsys):
    try:
        code = main(["plan", *words.split()])
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err
