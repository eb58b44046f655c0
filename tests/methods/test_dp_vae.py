"""DP-VAE: what is released, what is paid, and the leak of seed 0 that is closed here."""

import math
from dataclasses import dataclass

import dp_accounting as dp
import pytest
import torch

from dpray.errors import BadInput, BudgetExceeded
from dpray.methods import dp_vae
from dpray.methods.dp_vae import DPVae
from dpray.privacy.card import make_card

TINY = {"latent": 2, "hidden": 8, "batch_size": 20, "epochs": 2.0}


def test_the_release_holds_the_decoder_and_nothing_else(tiny_data, make_run):
    conditional = DPVae(**TINY).fit(tiny_data, make_run())
    assert {key.split(".")[0] for key in conditional.module.state_dict()} == {"inner", "outer"}
    statistics = DPVae(**TINY, class_model="noisy-statistics").fit(tiny_data, make_run())
    names = {key.split(".")[0] for key in statistics.module.state_dict()}
    assert names == {"inner", "outer", "means", "deviations"}


def test_noisy_statistics_are_charged_beside_the_gradients(tiny_data, make_run):
    run = make_run(epsilon=2.0)
    DPVae(**TINY, class_model="noisy-statistics").fit(tiny_data, run)
    assert [entry.name for entry in run.ledger.entries] == ["class statistics", "dp-vae"]
    assert 1.98 < run.ledger.epsilon <= 2.0


def test_statistics_that_cost_more_than_the_budget_are_refused(tiny_data, make_run):
    run = make_run(epsilon=0.1)
    with pytest.raises(BudgetExceeded, match="class statistics"):
        DPVae(**TINY, class_model="noisy-statistics").fit(tiny_data, run)
    assert run.ledger.entries == []


def test_the_statistics_of_a_record_have_norm_one_at_most(tiny_data, make_run, monkeypatch):
    found = []
    honest = dp_vae.noisy_slot_sums

    def look(vectors, slots, **settings):
        found.append(vectors(torch.arange(len(slots))))
        return honest(vectors, slots, **settings)

    monkeypatch.setattr(dp_vae, "noisy_slot_sums", look)
    DPVae(**TINY, class_model="noisy-statistics").fit(tiny_data, make_run())
    assert found[0].norm(dim=1).max() <= 1 + 1e-6
    assert found[0].norm(dim=1).min() > 0.57  # the count alone is 1 / sqrt(3)


def test_the_spread_is_the_total_one_and_not_the_posteriors_alone(tiny_data, make_run):
    """Seed 0 averaged the posterior's deviation and so drew near copies of one image."""
    method = DPVae(**TINY, class_model="noisy-statistics", statistics_noise=1e-6)
    run = make_run(noise_multiplier=1.0)
    model = method._build(tiny_data)
    paid = method._pay_statistics(run)
    with torch.no_grad():  # a posterior of variance exp(-6), the same for everyone
        model.encoder.outer.weight[2:] = 0
        model.encoder.outer.bias[2:] = -6
    method._set_statistics(model.encoder, model.decoder, tiny_data, run, paid)
    mean, _ = model.encoder(tiny_data.private.pixels, tiny_data.private.labels)
    own = mean[tiny_data.private.labels == 0]
    assert torch.allclose(model.decoder.means[0], own.mean(0), atol=1e-4)
    total = own.var(0, correction=0) + math.exp(-6)
    assert torch.allclose(model.decoder.deviations[0] ** 2, total, atol=1e-4)


@dataclass(frozen=True)
class SeedStatistics:
    """Seed 0's class statistics as they were: means of latents, no noise, so no privacy."""

    name: str = "un-noised class statistics"
    steps: int = 1
    bound: None = None

    @property
    def event(self) -> dp.DpEvent:
        return dp.NonPrivateDpEvent()


def test_the_seeds_own_statistics_would_make_the_card_say_no_privacy(tiny_data, make_run):
    run = make_run(noise_multiplier=5.0)
    DPVae(**TINY).fit(tiny_data, run)
    run.ledger.pay(SeedStatistics())
    card = make_card(
        run_id="r",
        method="dp-vae",
        dataset="tiny",
        ledger=run.ledger,
        facts=run.facts,
        public={},
        num_records=60,
    )
    assert card.epsilon is None
    assert not card.fit_for_release
    assert any("epsilon is infinite" in reason for reason in card.reasons_against)


def test_a_stopped_training_goes_on_to_the_same_decoder(tiny_data, make_run, monkeypatch):
    whole = DPVae(**TINY).fit(tiny_data, make_run(key=5))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped")
    honest = run.checkpoints.save

    def stop_after_four(stage, checkpoint):
        honest(stage, checkpoint)
        if checkpoint.step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.checkpoints, "save", stop_after_four)
    with pytest.raises(KeyboardInterrupt):
        DPVae(**TINY).fit(tiny_data, run)
    resumed = make_run(key=5, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = DPVae(**TINY).fit(tiny_data, resumed)
    for key, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[key])


@pytest.mark.parametrize(
    "settings",
    [
        {"latent": 0},
        {"epochs": 0.0},
        {"clip_norm": math.inf},
        {"averaging": 1.0},
        {"label_scale": math.nan},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, tiny_data):
    with pytest.raises(BadInput, match="must be"):
        DPVae(**settings).check(tiny_data)
