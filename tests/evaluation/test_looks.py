"""Looks at a training on its way: paid for, kept, told again; weights are none the wiser."""

import math

import pytest
import torch
from torch import nn

from dpray import methods
from dpray.contract import Classifier
from dpray.data.records import Dataset
from dpray.errors import BadInput, BudgetExceeded, CannotResume, Diverged
from dpray.evaluation.in_run import evaluate
from dpray.evaluation.looks import Looks, Watch, looks_at
from dpray.evaluation.suite import Suite
from dpray.privacy.accounting import Budget, cost_of
from dpray.privacy.ledger import HOLD_OUT
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum
from dpray.search.budgets import score_event

pytestmark = pytest.mark.usefixtures("own_cache")

# Of 40 hold-out records, 14 are of class 0.
RAW, TEST = 14, 40
SCORE = Suite(
    "score", ("mlp",), 1, False, headline="mlp", epochs={"mlp": 1}, num_images=30, fidelity=False
)
FEW = {"latent": 2, "hidden": 8, "batch_size": 20, "epochs": 2.0}
DUEL = {"latent": 2, "hidden": 4, "batch_size": 20, "steps": 4, "num_fakes": 6}
TAUGHT = {"teachers": 6, "rounds": 4, "questions": 3, "num_fakes": 6, "hidden": 4}
LEARNER = {"public_steps": 3, "public_latent": 6, "ascent_steps": 2, "noise": 2, "hidden": 4}
SMALL = {"latent": 2, "hidden": 4, "num_fakes": 6, "subsets_per_step": 3, "steps": 4}
TINY = {
    "augm": {**FEW, "images_per_class": 20},
    "dp-cgan": {**DUEL, "critic_steps": 1},
    "dp-gan": {**DUEL, "critic_steps": 2},
    "datalens": {**TAUGHT, "signs": 5, "fits": 2},
    "dp-kvae": {**FEW, "clusters": 2, "iterations": 1, "frequencies": 20},
    "dp-match": {"spc": 2, "networks": 2, "width": 2, "steps": 4, "dimensions": 4, "warp": 1.0},
    "dp-merf": {"frequencies": 20, "hidden": 8, "steps": 4, "images_per_class": 2},
    "dp-sgd": {"features": "pixels", "batch_size": 20, "steps": 8},
    "dp-sinkhorn": {"latent": 2, "hidden": 8, "batch_size": 20, "num_fakes": 6, "steps": 4},
    "dp-vae": FEW,
    "dp2-vae": {"encoders": 6, "latent": 2, "hidden": 4, "pretrain_steps": 2, "steps": 4},
    "dpmi": {**LEARNER, "batch_size": 20, "steps": 4},
    "g-pate": {**TAUGHT, "projections": 2, "fits": 2},
    "gs-wgan": {**SMALL, "critics": 6, "critic_hidden": 3, "num_images": 6, "warm_steps": 2},
    "pate-gan": {**TAUGHT, "questions": 6, "student_steps": 2},
    "psg": {"spc": 2, "width": 4, "iterations": 2, "outer": 2, "inner": 1, "batch_size": 20},
}


class Watching(nn.Module):
    """Calls every image class 0, draws at random, and remembers what was on the ledger."""

    def __init__(self, run):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.run, self.paid = run, []

    def forward(self, pixels):
        self.paid.append([entry.name for entry in self.run.ledger.entries])
        torch.rand(3)
        return nn.functional.one_hot(torch.zeros(len(pixels), dtype=torch.long), 3).float()

    def __deepcopy__(self, memo):
        same = Watching(self.run)
        same.paid = self.paid
        same.load_state_dict(self.state_dict())
        return same


@pytest.fixture
def hold_out(tiny_data) -> Dataset:
    return Dataset(tiny_data, tiny_data.private[:TEST], test_is_public=False)


@pytest.fixture
def public(tiny_data) -> Dataset:
    return Dataset(tiny_data, tiny_data.private[:TEST], test_is_public=True)


def watched(run, data) -> Classifier:
    return Classifier("any", {}, Watching(run), data.class_names, data.shape)


def train(run, dataset, release, *, shares=(0.25, 0.5, 1.0), steps=8, first=0):
    """Steps that do nothing but call `run.look`; gives what was told."""
    told = []
    run.looks = Watch(Looks(shares, lambda *heard: told.append(heard)), dataset, SCORE)
    for step in range(first, steps):
        run.look(step + 1, steps, lambda: release)
    return told


def test_looks_double_up_to_the_end():
    assert looks_at(4) == (1 / 8, 1 / 4, 1 / 2, 1.0)
    assert looks_at(3, factor=3) == (1 / 9, 1 / 3, 1.0)
    assert looks_at(1) == (1.0,)


@pytest.mark.parametrize("shares", [(), (0.5,), (0.5, 0.5, 1.0), (0.0, 1.0), (0.5, 0.25, 1.0)])
def test_shares_that_do_not_increase_up_to_the_end_are_refused(shares):
    with pytest.raises(BadInput, match="increase up to 1"):
        Looks(shares, print)


def test_a_look_is_taken_at_the_first_step_that_reaches_its_share(public, make_run):
    run, steps = make_run(), []
    report = lambda place, score: steps.append((place, step))  # noqa: E731
    run.looks = Watch(Looks((0.2, 0.3, 0.9, 1.0), report), public, SCORE)
    for step in range(1, 6):
        run.look(step, 5, lambda: watched(run, public.train))
    assert steps == [(1, 1), (2, 2), (3, 5)]  # the end is not for it to tell


def test_a_public_test_set_is_scored_as_it_is_at_no_cost(public, make_run):
    run = make_run()
    assert train(run, public, watched(run, public.train)) == [(1, RAW / TEST), (2, RAW / TEST)]
    assert run.ledger.entries == []


def test_all_looks_together_are_charged_what_was_declared_and_no_more(hold_out, make_run):
    run = make_run(epsilon=1.0)
    release = watched(run, hold_out.train)
    train(run, hold_out, release)
    evaluate(release, hold_out, run, print, look=(3, 3))
    declared = score_event(Budget(1.0, 1e-5), looks=3)
    charged = [entry.event for entry in run.ledger.entries if entry.part == HOLD_OUT]
    assert charged == [declared.event] * declared.count
    assert 0.999 < cost_of(charged, 1e-5).epsilon <= 1.0
    assert cost_of([*charged, charged[0]], 1e-5).epsilon > 1.1
    more = GaussianSum(name="more", noise_multiplier=declared.event.noise_multiplier)
    with pytest.raises(BudgetExceeded):
        run.ledger.pay(more, part=HOLD_OUT)


def test_each_look_is_charged_under_its_name_before_the_hold_out_is_read(hold_out, make_run):
    run = make_run(epsilon=1.0)
    release = watched(run, hold_out.train)
    train(run, hold_out, release)
    first, second = (f"hold-out accuracy, look {place} of 3" for place in (1, 2))
    assert release.module.paid == [[first], [first, second]]


def test_every_look_has_the_declared_noise_and_a_draw_of_its_own(hold_out, make_run):
    run = make_run(epsilon=4.0, key=5)
    told = train(run, hold_out, watched(run, hold_out.train))
    noise = score_event(Budget(4.0, 1e-5), looks=3).event.noise_multiplier
    for place, score in told:
        name = f"hold-out accuracy, look {place} of 3/noise"
        draw = RunKey.insecure(5).normals(name, 0, 1).item()
        assert score * TEST == pytest.approx(RAW + noise * draw)
        # What one look alone would have had is too little for three of them.
        once = score_event(Budget(4.0, 1e-5)).noise_multiplier
        assert score * TEST != pytest.approx(RAW + once * draw, abs=1e-3)
    assert told[0][1] != told[1][1]


def test_other_keys_tell_other_scores_and_none_the_count_itself(hold_out, make_run):
    runs = [make_run(noise_multiplier=1.0, key=key) for key in (1, 2)]
    one, other = (train(run, hold_out, watched(run, hold_out.train)) for run in runs)
    scores = {score for _, score in (*one, *other)}
    assert len(scores) == 4 and RAW / TEST not in scores


def test_without_a_budget_all_looks_together_have_the_noise_of_epsilon_one(hold_out, make_run):
    run = make_run(noise_multiplier=1.0)
    release = watched(run, hold_out.train)
    train(run, hold_out, release)
    evaluate(release, hold_out, run, print, look=(3, 3))
    assert run.ledger.epsilon == pytest.approx(1.0, abs=1e-3)


def test_after_a_crash_looks_are_told_again_and_not_taken_again(hold_out, make_run):
    before = make_run(noise_multiplier=1.0, key=1, folder="one")
    told = train(before, hold_out, watched(before, hold_out.train))
    again = make_run(noise_multiplier=1.0, key=1, folder="one")
    release = watched(again, hold_out.train)
    assert train(again, hold_out, release, first=6) == told
    assert release.module.paid == [] and again.ledger.entries == []


def test_a_replay_by_other_arithmetic_does_not_go_on_from_a_score_that_was_told(hold_out, make_run):
    before = make_run(noise_multiplier=1.0, key=1, folder="one")
    train(before, hold_out, watched(before, hold_out.train))
    again = make_run(noise_multiplier=1.0, key=1, folder="one")
    release = watched(again, hold_out.train)
    release.module.weight.data += 1e-7
    with pytest.raises(CannotResume, match="look 1 was at other weights after step 2"):
        train(again, hold_out, release)


def test_weights_that_are_no_numbers_end_the_run_and_pay_for_no_look(hold_out, make_run):
    run = make_run()
    release = watched(run, hold_out.train)
    release.module.weight.data *= math.nan
    with pytest.raises(Diverged):
        train(run, hold_out, release)
    assert run.ledger.entries == [] and release.module.paid == []


def test_a_look_leaves_generator_and_mode_as_they_were(hold_out, make_run):
    run = make_run()
    release = watched(run, hold_out.train)
    release.module.train()
    state = torch.get_rng_state()
    train(run, hold_out, release)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(release.module.paid) == 2 and release.module.training


def test_a_part_of_a_run_is_not_looked_at(hold_out, make_run):
    run = make_run()
    run.looks = Watch(Looks((0.5, 1.0), pytest.fail), hold_out, SCORE)
    run.part_of("task 1", "training records / classes 1").look(1, 1, pytest.fail)


def test_all_that_say_so_can_be_looked_at():
    able = {name for name, kind in methods.table().items() if hasattr(kind, "can_be_looked_at")}
    assert able == set(TINY)
    assert all(methods.find(name)(**TINY[name]).can_be_looked_at for name in able)
    assert not methods.find("dpmi")(classes="per-class").can_be_looked_at
    assert not methods.find("dp-vae")(class_model="noisy-statistics").can_be_looked_at


class Stop(Exception):
    pass


@pytest.mark.parametrize("name", TINY)
def test_looks_and_a_stop_at_one_change_nothing_in_what_is_released(
    name, tiny_data, hold_out, make_run
):
    def fitted(folder, report=None):
        run = make_run(noise_multiplier=2.0, key=3, folder=folder)
        if report is not None:
            run.looks = Watch(Looks((0.25, 0.5, 1.0), report), hold_out, SCORE)
        torch.manual_seed(0)
        return methods.find(name)(**TINY[name]).fit(tiny_data, run).module.state_dict()

    def stop(place, score):
        before.append((place, score))
        if place == 2:
            raise Stop

    before, after = [], []
    undisturbed = fitted("other")
    with pytest.raises(Stop):
        fitted("own", stop)
    again = fitted("own", lambda *heard: after.append(heard))
    assert before == after and [place for place, _ in after] == [1, 2]
    for key, value in undisturbed.items():
        assert torch.equal(value, again[key]), key


@pytest.mark.parametrize("name", ["dp-sgd", "dpmi", "psg"])
def test_what_is_looked_at_is_what_would_be_released_by_then(
    name, tiny_data, public, make_run, monkeypatch
):
    from dpray.evaluation import looks

    seen = []
    honest = looks.evaluate

    def remember(release, *words, **named):
        seen.append(release.module.state_dict())
        return honest(release, *words, **named)

    monkeypatch.setattr(looks, "evaluate", remember)
    run = make_run(noise_multiplier=2.0, key=3)
    # Just before the end: at the last call.
    run.looks = Watch(Looks((0.1, 0.999, 1.0), lambda *heard: None), public, SCORE)
    last = methods.find(name)(**TINY[name]).fit(tiny_data, run).module.state_dict()
    assert all(torch.equal(value, seen[1][key]) for key, value in last.items())
    assert any(not torch.equal(value, seen[0][key]) for key, value in last.items())
