"""The journal of a search: nothing that was written is lost, changed or drawn again."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dpray.errors import BudgetExceeded, CannotResume
from dpray.privacy.noise import RunKey
from dpray.search.journal import WORST, Journal
from dpray.search.space import choice, log_uniform
from dpray.search.trials import SearchSpec

SEARCH = SearchSpec(
    method="dp-sgd",
    dataset="mnist",
    charge="compose",
    trials=4,
    epsilon=1.0,
    space={"lr": log_uniform(0.1, 10.0), "batch_size": choice(512, 1024)},
)


def begun(folder: Path, **changes) -> Journal:
    journal = Journal(folder)
    journal.begin(replace(SEARCH, **changes), key=RunKey.insecure(1))
    return journal


def test_it_is_the_owners_alone(tmp_path: Path) -> None:
    journal = begun(tmp_path / "private")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


def test_another_process_finds_what_was_written(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    for number in range(3):
        journal.start(number, {"lr": 0.1 * number, "batch_size": 512}, f"run-{number}")
    journal.finish(2, 0.7)
    journal.finish(0, 0.9)
    again = Journal(tmp_path)
    assert again.search == SEARCH
    assert [(one.number, one.score) for one in again.finished()] == [(0, 0.9), (2, 0.7)]
    (lost,) = again.unfinished()
    assert (lost.number, lost.draw, lost.run_id) == (1, {"lr": 0.1, "batch_size": 512}, "run-1")
    assert again.not_started() == [3]
    assert again.best().run_id == "run-0"


def test_a_trial_is_on_the_disk_before_it_starts(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.start(0, {"lr": 1.0}, "run-0")
    last = json.loads(journal.path.read_text().splitlines()[-1])
    assert last == {"line": "started", "number": 0, "draw": {"lr": 1.0}, "run_id": "run-0"}


def test_a_crashed_trial_goes_on_as_it_was_drawn_and_not_otherwise(tmp_path: Path) -> None:
    begun(tmp_path).start(0, {"lr": 1.0}, "run-0")
    journal = Journal(tmp_path)
    journal.start(0, {"lr": 1.0}, "run-0")
    assert len(journal.path.read_text().splitlines()) == 2
    with pytest.raises(CannotResume, match="trial 0 was started as run run-0"):
        journal.start(0, {"lr": 2.0}, "run-0")


def test_a_trial_that_failed_for_good_keeps_its_number_and_is_worst(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    for number, score in enumerate((WORST, math.nan, 0.2)):
        journal.start(number, {"lr": 1.0}, f"run-{number}")
        journal.finish(number, score)
    again = Journal(tmp_path)
    assert [one.score for one in again.finished()] == [-math.inf, -math.inf, 0.2]
    assert again.best().number == 2
    assert again.not_started() == [3]


def test_where_every_trial_failed_there_is_no_best_one(tmp_path: Path) -> None:
    journal = begun(tmp_path, trials=1)
    journal.start(0, {"lr": 1.0}, "run-0")
    journal.finish(0, WORST)
    assert journal.is_complete
    assert journal.best() is None


def test_of_equal_scores_the_first_trial_wins_however_they_ended(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    for number in range(3):
        journal.start(number, {"lr": 1.0}, f"run-{number}")
    for number in (2, 1, 0):
        journal.finish(number, 1.0)
    assert journal.best().number == 0


def test_a_torn_last_line_was_never_acted_on_and_is_dropped(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.start(0, {"lr": 1.0}, "run-0")
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + b'{"line": "started", "numb')
    again = Journal(tmp_path)
    assert journal.path.read_bytes() == whole
    again.start(1, {"lr": 2.0}, "run-1")
    assert [one.number for one in Journal(tmp_path).unfinished()] == [0, 1]


def test_a_journal_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.start(0, {"lr": 1.0}, "run-0")
    lines = journal.path.read_text().splitlines(keepends=True)
    journal.path.write_text(lines[0] + lines[1][:10] + "\n" + lines[1])
    with pytest.raises(CannotResume, match="damaged in line 2"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"trials": 5}, "trials"),
        ({"epsilon": 2.0}, "epsilon"),
        ({"space": {"lr": log_uniform(0.1, 20.0), "batch_size": choice(512, 1024)}}, "space"),
    ],
)
def test_another_search_cannot_go_on_in_its_place(tmp_path: Path, change, name: str) -> None:
    begun(tmp_path)
    journal = Journal(tmp_path)
    journal.begin(SEARCH)
    with pytest.raises(CannotResume, match=f"^{name} changed since this search began"):
        journal.begin(replace(SEARCH, **change))


def test_more_trials_than_were_declared_are_not_started(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    assert journal.num_trials == 4
    with pytest.raises(BudgetExceeded, match="trial 4 is none of those that were declared"):
        journal.start(4, {"lr": 1.0}, "run-4")
    with pytest.raises(CannotResume, match="never started"):
        journal.finish(3, 0.5)


def test_a_trial_ends_once(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.start(0, {"lr": 1.0}, "run-0")
    journal.finish(0, 0.5)
    with pytest.raises(CannotResume, match="ended already"):
        journal.finish(0, 0.9)


def test_the_secret_number_of_trials_is_drawn_once_and_kept(tmp_path: Path) -> None:
    select = {"charge": "select", "trials": 20}
    journal = begun(tmp_path, **select)
    drawn = journal.num_trials
    assert drawn == replace(SEARCH, **select).number_of_trials(RunKey.insecure(1))
    again = Journal(tmp_path)
    for key in range(5):  # whatever key it is taken up with
        again.begin(replace(SEARCH, **select), key=RunKey.insecure(key))
        assert again.num_trials == drawn


def test_a_selection_names_its_best_trial_only_when_all_are_made(tmp_path: Path) -> None:
    journal = begun(tmp_path, charge="select", trials=3)
    for number in journal.not_started():
        with pytest.raises(CannotResume, match="only a whole one may name its best trial"):
            journal.best()
        journal.start(number, {"lr": 1.0}, f"run-{number}")
        journal.finish(number, 0.1 * number)
    assert journal.best().number == journal.num_trials - 1


def test_a_folder_without_a_search_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert not journal.has_begun
    with pytest.raises(CannotResume, match="there is no search in"):
        journal.best()
