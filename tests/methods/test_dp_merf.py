"""DP-MERF: what is released, what it costs, and that the generator moves towards it."""

import math

import pytest
import torch

from dpray.errors import BadInput
from dpray.methods.dp_merf import DPMerf, Embedding

TINY = {"frequencies": 50, "hidden": 16, "latent": 2, "images_per_class": 4}


def test_features_of_an_image_have_norm_one():
    embed = Embedding(torch.randn(9, 40))
    assert torch.allclose(embed(torch.rand(20, 1, 3, 3)).norm(dim=1), torch.ones(20))


def test_epsilon_one_takes_the_analytic_noise(tiny_data, make_run):
    run = make_run(epsilon=1.0)
    DPMerf(**TINY, steps=1).fit(tiny_data, run)
    # privacy.md 5.3; the count row is inside the sensitivity, not inside the multiplier.
    assert run.facts["noise_multiplier"] == pytest.approx(3.730632, abs=1e-5)
    assert run.ledger.entries[0].bound == pytest.approx(math.sqrt(1.04))


@pytest.mark.parametrize("generator", ["conv", "mlp"])
def test_it_learns_where_the_classes_are_bright(generator, tiny_data, make_run):
    run = make_run(noise_multiplier=0.01)
    settings = {**TINY, "frequencies": 300, "images_per_class": 10}
    release = DPMerf(**settings, generator=generator, steps=150).fit(tiny_data, run)
    drawn = release.sample(torch.arange(3).repeat(20), torch.Generator().manual_seed(0))
    bands = torch.stack([drawn[:, :, 5 * i : 5 * i + 5].mean((1, 2, 3)) for i in range(3)], 1)
    assert (bands.argmax(1) == torch.arange(3).repeat(20)).float().mean() > 0.9


def test_a_stopped_fit_goes_on_to_the_same_generator(tiny_data, make_run, monkeypatch):
    whole = DPMerf(**TINY, steps=6).fit(tiny_data, make_run(key=5))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped")
    honest = run.checkpoints.save

    def stop_after_four(stage, checkpoint):
        honest(stage, checkpoint)
        if stage == "generator" and checkpoint.step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.checkpoints, "save", stop_after_four)
    with pytest.raises(KeyboardInterrupt):
        DPMerf(**TINY, steps=6).fit(tiny_data, run)
    resumed = make_run(key=5, folder="stopped")
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = DPMerf(**TINY, steps=6).fit(tiny_data, resumed)
    assert len(resumed.ledger.entries) == 1
    for key, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[key])


@pytest.mark.parametrize("settings", [{"frequencies": 0}, {"bandwidth": 0.0}, {"lr": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings, tiny_data):
    with pytest.raises(BadInput, match="must be"):
        DPMerf(**settings).check(tiny_data)
