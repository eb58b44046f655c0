"""Trials are written down before they are handed out, and come again after a crash."""

import math

import optuna
import pytest

from dpray.search.budgets import CannotMeetBudget, DataFacts
from dpray.search.folder import make_search_folder
from dpray.search.handing_out import Trials, begin
from dpray.search.journal import WORST, Journal
from dpray.search.space import choice, log_uniform
from dpray.search.trials import SearchSpec

FACTS = DataFacts(num_records=900, num_classes=10)
SPACE = {"lr": log_uniform(0.1, 10.0), "clip_norm": log_uniform(0.1, 1.0)}


def make(charge="compose", trials=3, **words) -> SearchSpec:
    fixed = {"settings": {"steps": 5, "batch_size": 50}, "space": SPACE, "epsilon": 1.0}
    return SearchSpec(
        method="dp-sgd", dataset="digits", charge=charge, trials=trials, **{**fixed, **words}
    )


def start(search, name="a-search"):
    folder = make_search_folder(name, search)
    return folder, Trials(folder, begin(folder, search, test_key=3), FACTS)


def again(folder) -> Trials:
    """As after a crash: all that is known is what is on the disk."""
    return Trials(folder, Journal(folder.private), FACTS)


def study_of(folder):
    backend = optuna.storages.journal.JournalFileBackend(str(folder.study))
    storage = optuna.storages.JournalStorage(backend)
    return optuna.load_study(study_name=folder.search_id, storage=storage)


def test_a_trial_is_in_the_journal_before_it_is_handed_out():
    folder, trials = start(make())
    job = trials.next()
    (started,) = Journal(folder.private).unfinished()
    assert (started.number, started.run_id) == (job.number, job.run_id) == (0, "trial-0000")
    assert job.spec["settings"]["lr"] == started.draw["lr"]
    assert job.spec["dataset"] == "digits@tuning"


def test_all_declared_trials_are_handed_out_and_no_more():
    _, trials = start(make(trials=3))
    assert [trials.next().number for _ in range(3)] == [0, 1, 2]
    assert trials.next() is None


def test_what_was_under_way_comes_again_with_the_same_draw():
    folder, trials = start(make())
    first, second = trials.next(), trials.next()
    trials.ended(first.number, 0.5)
    later = again(folder)
    assert later.next() == second
    assert later.next().number == 2
    assert later.next() is None


def test_draws_of_a_search_are_the_same_however_often_it_is_cut_off():
    folder, trials = start(make(charge="select", trials=4, law="geometric"))
    whole = [job.spec for job in iter(trials.next, None)]
    assert [job.spec for job in iter(again(folder).next, None)] == whole


def test_a_search_that_keeps_its_best_trial_alone_has_no_study_to_look_at():
    folder, trials = start(make(charge="select"))
    trials.ended(trials.next().number, 0.5)
    assert not folder.study.exists()


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_optuna_opens_the_study_and_finds_every_trial_that_ended(sampler):
    folder, trials = start(make(sampler=sampler))
    jobs = [trials.next() for _ in range(3)]
    trials.ended(jobs[0].number, 0.9)
    trials.ended(jobs[1].number, WORST)
    trials.ended(jobs[2].number, 0.4, stopped=True)
    found = {t.user_attrs["trial"]: t for t in study_of(folder).get_trials()}
    assert [found[n].state.name for n in range(3)] == ["COMPLETE", "FAIL", "PRUNED"]
    assert found[0].value == 0.9
    assert found[0].params["lr"] == jobs[0].spec["settings"]["lr"]


def test_tpe_goes_where_scores_are_high():
    _, trials = start(make(sampler="tpe", trials=40))
    rates = []
    for job in iter(trials.next, None):
        rates.append(job.spec["settings"]["lr"])
        trials.ended(job.number, 1 - abs(math.log(rates[-1] / 6)) / 5)
    assert sum(rate > 3 for rate in rates[20:]) >= 10  # of 20; by chance it would be about 5


def test_a_study_that_a_crash_left_behind_is_put_right_from_the_journal():
    folder, trials = start(make(sampler="tpe"))
    first, _ = trials.next(), trials.next()
    trials.journal.finish(first.number, 0.7)  # and the driver dies before Optuna is told
    later = again(folder)
    states = {t.user_attrs.get("trial"): t.state.name for t in study_of(folder).get_trials()}
    assert states == {0: "COMPLETE", 1: "RUNNING"}
    assert later.next().number == 1


def test_settings_that_miss_the_budget_are_never_started():
    space = {"noise_multiplier": choice(0.02, 4.0), "lr": log_uniform(0.1, 1.0)}
    search = make(space=space, settings={"batch_size": 50}, sampler="tpe", trials=4)
    folder, trials = start(search)
    assert len(list(iter(trials.next, None))) == 4
    assert {one.draw["noise_multiplier"] for one in Journal(folder.private).unfinished()} == {4.0}


def test_a_space_that_never_meets_the_budget_says_so():
    space = {"noise_multiplier": choice(0.02, 0.03)}
    _, trials = start(make(space=space, settings={"batch_size": 50}))
    with pytest.raises(CannotMeetBudget, match="none meets the budget"):
        trials.next()


def test_a_draw_must_fit_the_private_records_too():
    """A noise that a large proxy affords for many steps is too little for few records."""
    search = make(charge="public", proxy="mnist", space={"noise_multiplier": choice(1.0)},
                  settings={"batch_size": 600})  # fmt: skip
    folder = make_search_folder("a-search", search)
    journal = begin(folder, search, test_key=3)
    large, few = DataFacts(60_000, 10), DataFacts(6_000, 10)
    with pytest.raises(CannotMeetBudget):
        Trials(folder, journal, large, final_facts=few).next()
    assert Trials(folder, journal, large).next() is not None
