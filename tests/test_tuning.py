"""A search from its specification to a card: what leaves it, what it costs, and how it goes on."""

import json
import math

import numpy as np
import pytest

from dpray import cli
from dpray.errors import LedgerDamaged, NoTrialWorked
from dpray.execute import check
from dpray.privacy.card import Card, verify
from dpray.runs import runs_folder
from dpray.search.budgets import DataFacts
from dpray.search.cost import cost_beforehand
from dpray.search.folder import open_search_folder, searches_folder
from dpray.search.journal import WORST, Journal
from dpray.search.space import log_uniform
from dpray.search.trials import SearchSpec
from dpray.spec import RunSpec
from dpray.tuning import tune

FACTS = DataFacts(num_records=1288, num_classes=10)  # of digits@tuning
SPACE = {"lr": log_uniform(0.5, 5.0)}
FIXED = {"features": "pixels", "batch_size": 300, "steps": 10}


def make(charge="compose", trials=3, **words) -> SearchSpec:
    fixed = {"epsilon": 3.0, "delta": 1e-4, "space": SPACE, "settings": FIXED}
    return SearchSpec(
        method="dp-sgd", dataset="digits", charge=charge, trials=trials, **{**fixed, **words}
    )


@pytest.fixture
def other_digits(tmp_path):
    """A small public dataset of its own, of the shape of digits."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 10
    images = (rng.random((300, 28, 28)) * 100 + 10 * labels[:, None, None]).astype(np.uint8)
    path = tmp_path / "others.npz"
    np.savez(path, images=images, labels=labels, test_images=images[:50], test_labels=labels[:50])
    return str(path)


def test_a_paid_search_leaves_its_best_trial_under_a_card_of_the_whole():
    tuned = tune(make(), track=False)
    best = Journal(tuned.folder.private).best()
    card = Card.read(tuned.result.folder.path / "card.json")
    assert card.epsilon == cost_beforehand(make(), FACTS).epsilon > 3.0
    assert verify(card).recomputed == card.epsilon
    assert "search" in card.covers and card.fit_for_release
    assert tuned.result.metric("search_score") == best.score
    assert tuned.result.metric("epsilon") == card.epsilon
    assert tuned.result.spec.settings["lr"] == best.draw["lr"]


def test_a_trial_that_was_charged_with_more_than_declared_ends_the_search(monkeypatch):
    declared = cost_beforehand(make(settings={**FIXED, "steps": 9}), FACTS)
    monkeypatch.setattr("dpray.tuning.cost_beforehand", lambda *words: declared)
    with pytest.raises(LedgerDamaged, match="charged with more"):
        tune(make(trials=1), track=False)


def test_the_test_set_is_read_once_the_choice_is_made():
    tuned = tune(make(), track=False)
    trial = json.loads((tuned.folder.runs / "trial-0000" / "spec.json").read_text())
    assert trial["dataset"] == "digits@tuning"
    sources = {metric.name: metric.source.value for metric in tuned.result.metrics}
    assert sources["search_score"] != sources["test_accuracy"]


def test_where_only_the_best_leaves_nothing_tells_of_the_others(capsys):
    said = []
    tuned = tune(make("select", trials=4), track=False, say=said.append)
    assert not tuned.folder.runs.exists()
    assert tuned.outcome.trials == ()
    assert "core_seconds" not in {metric.name for metric in tuned.result.metrics}
    public = [path for path in tuned.folder.path.rglob("*") if "private" not in path.parts]
    released = [path for path in tuned.result.folder.path.rglob("*") if path.is_file()]
    texts = [path.read_text() for path in (*public, *released) if path.suffix in (".json", ".txt")]
    assert not any("trial-0" in text for text in texts)
    assert not list(tuned.folder.path.glob("*.png")) and not tuned.folder.study.exists()
    assert len(list(runs_folder().iterdir())) == 1
    assert not any(word[:1].isdigit() and word.startswith("2") for word in
                   tuned.folder.search_id.split("-")[:1])  # fmt: skip


def test_a_public_search_costs_the_one_run_at_its_end(other_digits):
    tuned = tune(make("public", proxy=other_digits), track=False)
    assert tuned.result.card.epsilon == pytest.approx(3.0, abs=0.01)
    assert "others.npz" in tuned.result.card.covers
    assert tuned.result.spec.dataset == "digits"
    assert verify(Card.read(tuned.result.folder.path / "card.json")).recomputed <= 3.0


def test_a_search_that_nobody_paid_for_is_not_fit_for_release():
    tuned = tune(make("none"), track=False)
    assert not tuned.result.card.fit_for_release
    assert "nobody paid" in " ".join(tuned.result.card.reasons_against)


def test_a_search_that_was_cut_off_goes_on_with_what_it_had_begun():
    def one_trial_and_away(trials, **others):
        job = trials.next()
        trials.ended(job.number, 0.25)
        trials.next()  # begun, and never ended
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(make(), conduct=one_trial_and_away, track=False)
    (path,) = searches_folder().iterdir()
    begun = Journal(path / "private").unfinished()
    folder = open_search_folder(path.name)
    tuned = tune(folder.read_search(), folder=folder, track=False)
    finished = Journal(path / "private").finished()
    assert [one.number for one in finished] == [0, 1, 2]
    assert finished[0].score == 0.25
    assert finished[1].draw == begun[0].draw
    again = tune(folder.read_search(), folder=folder, track=False)
    assert again.result.metrics == tuned.result.metrics


def fail(trials):
    while (job := trials.next()) is not None:
        trials.ended(job.number, WORST)


def test_a_search_in_which_nothing_trained_says_so():
    with pytest.raises(NoTrialWorked, match="narrower space"):
        tune(make(trials=1), conduct=lambda trials, **others: fail(trials), track=False)


def test_the_best_settings_are_a_file_that_a_run_accepts():
    tuned = tune(make(), track=False)
    spec = RunSpec.read(tuned.folder.best)
    assert spec.dataset == "digits"
    assert check(spec).lr == tuned.result.spec.settings["lr"]


def test_a_scheduler_pays_for_its_looks_out_of_the_same_budget():
    plain, looked = (cost_beforehand(make(scheduler=name), FACTS) for name in ("none", "asha"))
    assert looked.epsilon == pytest.approx(plain.epsilon, rel=1e-3)
    tuned = tune(make(scheduler="asha", looks=4, trials=1, settings={**FIXED, "steps": 16}),
                 track=False)  # fmt: skip
    scores = [entry for entry in tuned.result.card.ledger["entries"] if "look" in entry["name"]]
    assert len(scores) >= 3
    assert math.isfinite(verify(tuned.result.card).recomputed)


BAD = {
    "unknown field": (["--space", "{space}"], "no setting"),
    "contradiction": (["--set", "lr=1"], "leave one of the two out"),
    "zero trials": (["--trials", "0"], "at least 1"),
    "no charge": (["--charge", ""], "--charge has no default"),
    "the proxy is the private data": (
        ["--charge", "public", "--proxy", "digits"],
        "the private dataset itself",
    ),
    "a sampler that looks back": (
        ["--charge", "select", "--sampler", "tpe"],
        "independent draws",
    ),
    "a scheduler": (["--charge", "select", "--scheduler", "asha"], "know nothing of each other"),
    "a score of a classifier": (["--score", "cnn"], "dp-sgd is a classifier"),
    "images for a classifier": (["--score-images", "100"], "is for synthesizers"),
    "looks of nobody": (["--looks", "4"], "needs a scheduler"),
    "looks": (["--scheduler", "asha", "--looks", "1"], "2 to 8"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_one_line_and_nothing_is_charged(case, capsys, tmp_path):
    words, said = BAD[case]
    space = tmp_path / "space.py"
    space.write_text("from dpray.search.space import choice\nSPACE = {'learning': choice(1, 2)}\n")
    words = [word.format(space=space) for word in words]
    start = ["tune", "dp-sgd", "--dataset", "digits", "--epsilon", "1", "--charge", "compose"]
    assert cli.main([*start, *words, "--no-tracking", "--on", "here"]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and said in error[0]
    assert not searches_folder().exists()


def test_a_score_by_an_unknown_classifier_is_refused_with_the_known_ones(capsys):
    words = "tune dp-merf --dataset digits --epsilon 1 --charge compose --score cnnn --on here"
    assert cli.main(words.split()) == 2
    assert "did you mean" in capsys.readouterr().err
    assert not searches_folder().exists()


def test_a_search_from_words_prints_one_epsilon_for_all_of_it(capsys, tmp_path):
    space = tmp_path / "space.py"
    space.write_text(
        "from dpray.search.space import log_uniform\nSPACE = {'lr': log_uniform(0.5, 5)}\n"
    )
    words = (
        f"tune dp-sgd --dataset digits --epsilon 3 --delta 1e-4 --trials 3 --charge compose "
        f"--space {space} --set features=pixels batch_size=300 steps=10 --on here --no-tracking "
        "--quiet --json"
    )
    assert cli.main(words.split()) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["epsilon"] == cost_beforehand(make(), FACTS).epsilon
    assert len(value["trials"]) == 3 and value["fit_for_release"]


def test_a_search_that_is_not_there_is_refused(capsys):
    assert cli.main(["tune", "dp-sgd", "--resume", "nothing"]) == 2
    assert "leave out method" in capsys.readouterr().err
    assert cli.main(["tune", "--resume", "nothing"]) == 2
    assert "no search 'nothing'" in capsys.readouterr().err
