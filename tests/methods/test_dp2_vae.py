"""DP2-VAE: two stages, what may be remembered, and what is released."""

import dataclasses

import pytest
import torch

from dpray.data.splits import partition
from dpray.errors import BadInput
from dpray.methods import dp2_vae
from dpray.methods.dp2_vae import DP2Vae
from dpray.privacy.queries import PaidQuery
from dpray.stacks import encoders as stage_one
from dpray.stacks.states import Latents
from dpray.stacks.subsets import Subsets

TINY = {
    "encoders": 6,
    "latent": 2,
    "hidden": 4,
    "pretrain_steps": 2,
    "subsets_per_step": 3,
    "steps": 6,
    "chunk": 2,
}
STATES = ("ephemeral", "scheduled", "frozen", "selected")


def charged(run):
    return run.ledger.entries[0].event.event.sampling


@pytest.mark.parametrize(
    ("state", "sampling", "event"),
    [
        ("ephemeral", "poisson", "poisson"),
        ("scheduled", "poisson", "poisson"),
        ("frozen", "one-of-k", "one-of-k"),
        ("selected", "poisson", "revealed"),
        ("selected", "one-of-k", "revealed"),
        ("selected", "all-subsets", "every"),
        ("ephemeral", "all-subsets", "every"),
    ],
)
def test_the_event_follows_from_the_choice(state, sampling, event, tiny_data, make_run):
    run = make_run(noise_multiplier=2.0)
    per_step = 3 if sampling == "poisson" else None
    settings = {**TINY, "sampling": sampling, "subsets_per_step": per_step, "encoder_state": state}
    DP2Vae(**settings).fit(tiny_data, run)
    assert charged(run) == event


def test_no_setting_can_make_the_papers_encoders_cheap(tiny_data, make_run):
    noise = {
        state: make_run(epsilon=3.0).at_noise(DP2Vae(**TINY, encoder_state=state).query)
        for state in ("ephemeral", "selected")
    }
    assert noise["selected"].noise_multiplier > 1.3 * noise["ephemeral"].noise_multiplier


@pytest.mark.parametrize("state", STATES)
def test_the_release_holds_the_decoder_and_nothing_else(state, tiny_data, make_run):
    run = make_run(noise_multiplier=2.0)
    release = DP2Vae(**TINY, encoder_state=state).fit(tiny_data, run)
    names = set(release.module.state_dict())
    assert names == {"inner.weight", "inner.bias", "outer.weight", "outer.bias"}
    assert not (run.workdir / "encoders").exists()


@pytest.mark.parametrize("state", STATES)
def test_a_run_that_was_stopped_ends_with_the_same_decoder(state, tiny_data, make_run, monkeypatch):
    settings = {**TINY, "encoder_state": state, "refreshes": 2, "refresh_steps": 1}
    whole = DP2Vae(**settings).fit(tiny_data, make_run(key=5, noise_multiplier=2.0))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped", noise_multiplier=2.0)
    honest, asked = PaidQuery.check, []

    def stop_at_five(self, step):
        if step == 5 and not asked:
            asked.append(step)
            raise KeyboardInterrupt
        honest(self, step)

    monkeypatch.setattr(PaidQuery, "check", stop_at_five)
    with pytest.raises(KeyboardInterrupt):
        DP2Vae(**settings).fit(tiny_data, run)
    resumed = make_run(key=5, folder="stopped", noise_multiplier=2.0)
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    trained = count_blocks(monkeypatch)
    release = DP2Vae(**settings).fit(tiny_data, resumed)
    assert trained == []  # stage 1 was whole
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[name])


def count_blocks(monkeypatch):
    trained = []
    honest = stage_one.pretrain_block

    def count(job, shared=None):
        trained.append(job.numbers)
        return honest(job, shared)

    monkeypatch.setattr(stage_one, "pretrain_block", count)
    return trained


def test_a_rank_holds_whole_subsets(tiny_data):
    method = DP2Vae(**TINY)
    shares = [method.share(tiny_data, rank, 2) for rank in range(2)]
    numbers = [set(partition(s.private.ids, 6, "dp2-vae subsets").tolist()) for s in shares]
    assert not numbers[0] & numbers[1]
    assert sum(len(s.private) for s in shares) == tiny_data.num_records == shares[0].num_records


def test_stage_one_can_be_left_out(tiny_data, make_run):
    settings = {**TINY, "pretrain_steps": 0}
    release = DP2Vae(**settings).fit(tiny_data, make_run(noise_multiplier=2.0))
    other = DP2Vae(**TINY).fit(tiny_data, make_run(noise_multiplier=2.0))
    assert not torch.equal(release.module.outer.weight, other.module.outer.weight)


def test_the_papers_network_trains(tiny_data, make_run):
    settings = {**TINY, **DP2Vae.presets["paper"], "hidden": 8, "steps": 2}
    release = DP2Vae(**settings).fit(tiny_data, make_run(noise_multiplier=2.0))
    drawn = release.sample(torch.arange(3), torch.Generator().manual_seed(0))
    assert drawn.shape == (3, *tiny_data.shape)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoders": 61}, "61 encoders for 60 records"),
        ({"encoders": 1}, "at least 2"),
        ({"encoders": 6, "subsets_per_step": 7.0}, "out of range"),
        ({"encoders": 6, "sampling": "one-of-k", "subsets_per_step": 2.0}, "do not go with"),
        ({"encoders": 6, "steps": 0}, "steps at least 1"),
        ({"encoders": 6, "grain": 50}, "grain of 50"),
        ({"encoders": 6, "lr": float("nan")}, "above 0"),
        ({"encoders": 6, "adapt_steps": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_charged(settings, words, tiny_data):
    with pytest.raises(BadInput, match=words):
        DP2Vae(**settings).check(tiny_data)


class Seen(Exception):
    pass


def first_contributions(data, run, monkeypatch):
    """What every subset would add to the first step, by its number."""
    seen = {}

    def spy(contributions, subsets, step, **others):
        numbers = partition(data.private.ids, 6, "dp2-vae subsets")
        order = Subsets(data.private, numbers, 6).by_size(subsets)
        rows = torch.cat(list(contributions(subsets)))
        seen.update(zip(order.tolist(), rows, strict=True))
        raise Seen

    monkeypatch.setattr(dp2_vae, "noisy_subset_mean", spy)
    settings = {**TINY, "sampling": "all-subsets", "subsets_per_step": None}
    with pytest.raises(Seen):
        DP2Vae(**settings).fit(data, run)
    return seen


def test_a_record_reaches_the_contribution_of_its_own_subset_alone(
    tiny_data, make_run, monkeypatch
):
    less = dataclasses.replace(tiny_data, private=tiny_data.private[slice(1, None)])
    before, after = (
        first_contributions(data, make_run(noise_multiplier=2.0), monkeypatch)
        for data in (tiny_data, less)
    )
    changed = [k for k in range(6) if not torch.allclose(before[k], after[k], atol=1e-5)]
    assert changed == partition(tiny_data.private.ids[:1], 6, "dp2-vae subsets").tolist()


def test_more_subsets_without_records_than_a_block_holds_are_no_trouble(tiny_data, make_run):
    settings = {**TINY, "encoders": 60, "subsets_per_step": 10, "steps": 2}
    release = DP2Vae(**settings).fit(tiny_data, make_run(noise_multiplier=2.0))
    assert release.module.outer.weight.isfinite().all()


def test_latent_noise_belongs_to_the_record_and_the_step(make_run):
    latents = Latents(make_run().key, 3, torch.device("cpu"))
    ids = torch.arange(4).reshape(2, 2)
    assert torch.equal(latents("decoder", 1, ids)[1, 0], latents("decoder", 1, ids[1, :1])[0])
    assert not torch.equal(latents("decoder", 1, ids), latents("decoder", 2, ids))


@pytest.mark.parametrize(
    ("side", "channels", "latent"), [(28, [512, 256], 8), (64, [512, 256, 128], 16)]
)
def test_the_papers_networks_follow_from_the_size_of_the_images(tiny_data, side, channels, latent):
    images = dataclasses.replace(tiny_data.private, pixels=torch.zeros(60, 3, side, side))
    method = DP2Vae(**DP2Vae.presets["paper"])
    recipe = method._recipe(dataclasses.replace(tiny_data, private=images))
    assert recipe.decoder_arguments["channels"] == channels
    assert recipe.latent == latent
