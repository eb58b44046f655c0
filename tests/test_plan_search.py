"""`dpray plan --search`: what each way to search costs, and wrong input is one line."""

import json

import pytest

from dpray.cli import main

# Every record in every step: the cheapest trial to account for.
WORDS = ["plan", "--search", "--records", "1000", "--batch-size", "1000", "--steps", "20"]


def modes(words, capsys):
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    return answer, {(m["mode"], m["law"]): m["epsilon"] for m in answer["modes"]}


def test_choosing_is_dearer_than_a_trial_and_cheaper_than_publishing_all(capsys):
    answer, rows = modes([*WORDS, "--noise-multiplier", "12"], capsys)
    assert answer["trials"] == [1, 5, 10, 20, 40, 100]
    one = answer["trial"]["epsilon"]
    every = rows["compose", None]
    assert rows["public", None] == [0] * 6
    for law in ("geometric", "logarithmic"):
        kept = rows["select", law]
        assert kept[0] == every[0] == one
        assert kept == sorted(kept) and len(set(kept)) == 6
        assert all(a < b for a, b in zip(kept[1:], every[1:], strict=True))
    assert rows["none", None] == [None] * 6
    assert [m["releasable"] for m in answer["modes"]] == [True] * 4 + [False]


# reference/privacy.md section 6.3, column DP-SGD; "compose" is its "publish all"
def test_the_numbers_are_the_references(capsys):
    words = "plan --search --records 60000 --batch-size 256 --steps 3515 --noise-multiplier 1.185"
    _, rows = modes(words.split(), capsys)
    assert rows["select", "logarithmic"][3] == pytest.approx(1.857, abs=0.01)
    geometric = [rows["select", "geometric"][i] for i in (1, 2, 3, 5)]
    assert geometric == pytest.approx((1.714, 1.982, 2.202, 2.630), abs=0.01)
    assert rows["compose", None][3] == pytest.approx(5.207, abs=0.01)


def test_a_base_epsilon_is_calibrated_first_and_neighbours_count(capsys):
    answer, rows = modes([*WORDS, "--epsilon", "1"], capsys)
    assert 0.99 < answer["trial"]["epsilon"] <= 1
    noise = str(answer["trial"]["noise_multiplier"])
    words = [*WORDS, "--noise-multiplier", noise, "--adjacency", "replace-one"]
    _, replaced = modes(words, capsys)
    assert replaced["select", "geometric"][3] > 1.5 * rows["select", "geometric"][3]


def test_a_person_sees_the_table_and_what_the_modes_are(capsys):
    assert main([*WORDS, "--noise-multiplier", "12"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("select (geometric)", "compose", "none: not releasable", "drawn in secret"):
        assert words in out


def test_help_says_why_a_search_costs(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--help"])
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "keeping the best is itself a look at them" in out
    assert "dpray plan --search --records" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--subsets 10 --epsilon 1", "--search does not go with --subsets"),
        ("--epsilon 1", "--records"),
        ("--records 600 --batch-size 6 --steps 9 --epsilon -1", "epsilon -1"),
        ("--records 600 --batch-size 6 --steps 9 --epsilon 1 --delta 0", "delta 0"),
        ("--records 600 --batch-size 6 --steps 9 --noise-multiplier 0", "noise multiplier 0"),
        ("--records 600 --batch-size 6 --epsilon 1", "leave one out"),
        ("--records 600 --batch-size 6 --steps 9 --epsilon 1 --parameters 9", "--parameters"),
    ],
)
def test_a_wrong_input_is_one_line_and_exit_code_2(words, message, capsys):
    try:
        code = main(["plan", "--search", *words.split()])
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err
