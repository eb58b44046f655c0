"""DP-GAN: what it costs, how far a record moves what it releases, and that it learns."""

import math
from dataclasses import replace

import pytest
import torch

from dpray.checkpoints import Checkpoints
from dpray.errors import BadInput, NotPrivate
from dpray.methods.dp_gan import DPGan
from dpray.models.conditional_gans import DcganCritic
from dpray.privacy.accounting import Adjacency, rdp_bound
from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients

TINY = {"latent": 2, "hidden": 8, "batch_size": 20, "steps": 6, "critic_steps": 2, "num_fakes": 6}

# Bie et al.: batch size, noise multiplier, steps of the critic, what they cost by their accountant.
PUBLISHED = [
    (128, 1.0, 450_000, 9.97),
    (512, 2.0, 174_000, 10.08),
    (128, 5.0, 325_000, 0.994),
    (512, 14.0, 165_000, 1.004),
]


@pytest.mark.parametrize(("batch_size", "noise", "steps", "epsilon"), PUBLISHED)
def test_the_published_configurations_cost_what_they_claim(
    batch_size, noise, steps, epsilon, of_mnist_size
):
    query = DPGan(batch_size=batch_size, steps=steps)._query(of_mnist_size)(noise)
    cost = rdp_bound(query.event, 1e-5, Adjacency.ADD_REMOVE)
    assert cost == pytest.approx(epsilon, rel=2e-3)
    fewer = DPGan(batch_size=batch_size, steps=steps // 2)._query(of_mnist_size)(noise)
    assert rdp_bound(fewer.event, 1e-5, Adjacency.ADD_REMOVE) < 0.8 * epsilon


def test_the_paper_preset_is_the_published_network_and_schedule(of_mnist_size):
    paper = DPGan(**DPGan.presets["paper"])
    critic = DcganCritic((1, 28, 28), 10, paper.hidden)
    assert sum(p.numel() for p in critic.parameters()) == 1_724_289
    query = paper._query(of_mnist_size)(1.0)
    assert (query.sample_rate, query.steps) == (128 / 60_000, 450_000)


@pytest.fixture
def of_mnist_size(tiny_data):
    return replace(tiny_data, num_records=60_000)


@pytest.mark.parametrize("network", ["mlp", "dcgan"])
def test_neighbours_differ_by_the_clip_norm_at_most_and_without_a_clip_by_more(network, tiny_data):
    torch.manual_seed(0)
    critic = DPGan(**TINY, network=network)._critic(tiny_data)
    bound = 0.1
    for record in range(3):
        assert distance(critic, tiny_data, record, bound) <= bound * (1 + 1e-4)
        assert distance(critic, tiny_data, record, 1e3) > 1.1 * bound


def distance(critic, data, record, clip_norm):
    """Between the sums of all records and of all but one: the same noise is in both."""
    kept = torch.arange(60) != record
    whole = noisy_sum(critic, data.private, clip_norm)
    return (whole - noisy_sum(critic, data.private[kept], clip_norm)).norm()


def noisy_sum(critic, images, clip_norm, noise=1e-3, key=3):
    query = PoissonGradients(
        sample_rate=1.0,
        steps=1,
        clip_norm=clip_norm,
        noise_multiplier=noise / clip_norm,
        expected_batch_size=1.0,
    )
    noisy_gradient(
        critic,
        lambda rows: critic(images.pixels[rows], images.labels[rows]),
        images.ids,
        0,
        paid=PaidQuery(query, entry=0),
        key=RunKey.insecure(key),
    )
    return torch.cat([p.grad.flatten() for p in critic.parameters()]).double()


def test_the_noise_on_the_critic_has_the_declared_scale_and_another_is_noticed(tiny_data):
    critic = DPGan(**{**TINY, "hidden": 64})._critic(tiny_data)
    declared = 0.7 * 0.5  # noise multiplier times clip norm
    for scale, right in ((declared, True), (1.1 * declared, False)):
        sums = [noisy_sum(critic, tiny_data.private, 0.5, scale, key) for key in (1, 2)]
        # Two draws of noise over the same sum: their difference is noise alone.
        spread = (sums[0] - sums[1]).std() / math.sqrt(2)
        tolerance = 5 / math.sqrt(2 * len(sums[0]))
        assert (abs(spread / declared - 1) < tolerance) == right


def test_the_ledger_holds_one_query_of_as_many_steps_as_the_critic_takes(tiny_data, make_run):
    run = make_run(noise_multiplier=2.0)
    DPGan(**TINY).fit(tiny_data, run)
    (entry,) = run.ledger.entries
    assert (entry.name, entry.steps) == ("dp-gan", 6)
    assert run.facts["sample_rate"] == 20 / 60


def test_the_release_has_the_batch_statistics_of_generated_images(tiny_data, make_run):
    release = DPGan(**TINY).fit(tiny_data, make_run(noise_multiplier=2.0))
    state = release.module.state_dict()
    assert all(name.startswith("layers.") for name in state)  # nothing of the critic
    assert state["layers.1.running_mean"].abs().max() > 0  # where it started


def test_it_learns_which_stripe_a_class_has(tiny_data, make_run):
    few = {"latent": 4, "hidden": 32, "batch_size": 60, "num_fakes": 30, "averaging": 0.9}
    method = DPGan(**few, steps=200, critic_steps=1, lr_generator=3e-3)
    release = method.fit(tiny_data, make_run(noise_multiplier=0.5))
    labels = torch.arange(3).repeat_interleave(20)
    images = release.sample(labels, torch.Generator().manual_seed(0))
    stripes = torch.stack([images[:, 0, 5 * k : 5 * k + 5].mean((1, 2)) for k in range(3)], 1)
    assert (stripes.argmax(1) == labels).float().mean() > 0.9


@pytest.mark.parametrize("network", ["mlp", "conv", "dcgan"])
def test_a_stopped_training_goes_on_to_the_same_generator(
    network, tiny_data, make_run, monkeypatch
):
    method = DPGan(**TINY, network=network)
    whole = method.fit(tiny_data, make_run(key=5, noise_multiplier=1.0))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, noise_multiplier=1.0, folder="stopped")
    honest = Checkpoints.save

    def stop_after_three(self, stage, checkpoint):
        honest(self, stage, checkpoint)
        if checkpoint.step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", stop_after_three)
        with pytest.raises(KeyboardInterrupt):
            method.fit(tiny_data, run)
    run.ledger.asked.clear()  # as in a new process
    release = method.fit(tiny_data, run)
    assert len(run.ledger.entries) == 1
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[name]), name


def test_the_generator_moves_once_in_a_training_of_fewer_steps_than_it_waits_for(
    tiny_data, make_run
):
    method = DPGan(**{**TINY, "steps": 2, "critic_steps": 50})
    torch.manual_seed(0)  # the run's seed
    untrained = method._untrained(tiny_data).module
    trained = method.fit(tiny_data, make_run(noise_multiplier=2.0)).module
    assert not torch.equal(untrained.layers[0].weight, trained.layers[0].weight)


def test_a_critic_that_normalises_over_the_batch_is_refused_before_anything_is_paid(
    tiny_data, make_run, monkeypatch
):
    class WithBatchNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 1)

        def forward(self, images, labels):
            return self.head(self.norm(images.flatten(1))).squeeze(1)

    monkeypatch.setattr(DPGan, "_critic", lambda self, data: WithBatchNorm())
    run = make_run(noise_multiplier=2.0)
    with pytest.raises(NotPrivate):
        DPGan(**TINY).fit(tiny_data, run)
    assert run.ledger.entries == []


@pytest.mark.parametrize(
    "settings",
    [
        {"latent": 0},
        {"steps": 0},
        {"epochs": 0.0},
        {"clip_norm": math.inf},
        {"critic_steps": 0},
        {"num_fakes": 0},
        {"lr_critic": math.nan},
        {"averaging": 1.0},
        {"beta2": 1.0},
        {"lr_critic_left": 1.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, tiny_data):
    with pytest.raises(BadInput, match=r"must be|below 1"):
        DPGan(**settings).check(tiny_data)
