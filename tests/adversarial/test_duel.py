"""The loop of a private GAN: what it draws, what it keeps, and that it goes on where it stopped."""

import pytest
import torch

from dpray.checkpoints import Checkpoints
from dpray.models.latent_models import LatentDecoder
from dpray.privacy.queries import PaidQuery


class Listening(LatentDecoder):
    """Notes the labels it is asked for."""

    heard: list[torch.Tensor] = []  # noqa: RUF012 - shared with its copies

    def forward(self, labels, rng):
        self.heard.append(labels.clone())
        return super().forward(labels, rng)


@pytest.fixture
def labels_drawn(trained, make_run):
    def draw(labels):
        Listening.heard.clear()
        trained(
            make_run(noise_multiplier=2.0),
            labels=labels,
            generator=Listening(5, 3, noise=2, hidden=4),
            num_fakes=200,
        )
        return torch.cat(Listening.heard)

    return draw


def looks_uniform(labels):
    shares = labels.bincount(minlength=3) / len(labels)
    return bool(((shares - 1 / 3).abs() < 5 * (2 / 9 / len(labels)) ** 0.5).all())


def test_labels_of_generated_examples_are_uniform_whatever_those_of_records_are(labels_drawn):
    mostly_first = (torch.arange(30) >= 27).long()
    drawn = labels_drawn(mostly_first)
    assert len(drawn) == 200 * (6 + 3)  # six steps of the critic, three of the generator
    assert looks_uniform(drawn)
    assert not looks_uniform(mostly_first.repeat(60))
    assert torch.equal(drawn, labels_drawn(2 - mostly_first))


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_a_stopped_duel_goes_on_to_the_same_weights_and_moments(
    stop_at, trained, make_run, monkeypatch
):
    def last(run):
        return run.checkpoints.latest("duel", ledger_heads=run.ledger.heads)

    whole = make_run(noise_multiplier=2.0)
    trained(whole)
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(noise_multiplier=2.0, folder="stopped")
    honest = Checkpoints.save

    def stop(self, stage, checkpoint):
        honest(self, stage, checkpoint)
        if checkpoint.step == stop_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(run)
    assert last(run).step == stop_at
    run.ledger.asked.clear()  # as in a new process
    trained(run)
    expected, got = last(whole).tensors, last(run).tensors
    assert {"optimizer/0/exp_avg", "optimizer1/0/exp_avg", "average/inner.weight"} <= set(got)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def test_weights_of_a_wgan_critic_stay_within_the_clip_and_others_do_not(trained, make_run):
    largest = {"wgan": [], "bce": []}
    for loss, found in largest.items():

        def look(done, critic, found=found):
            weights = (critic.inner.weight, critic.outer.weight)
            found.append(max(weight.detach().abs().max().item() for weight in weights))

        trained(make_run(noise_multiplier=2.0), loss=loss, seen=look)
        assert len(found) == 6
    assert max(largest["wgan"]) <= 0.05 + 1e-7
    assert min(largest["bce"]) > 0.05


def test_a_critic_by_plain_descent_moves_by_its_rate_which_falls_evenly(trained, make_run):
    moves = {}
    for left in (1.0, 0.0):
        seen = []

        def look(done, critic, seen=seen):
            seen.append(critic.inner.weight.detach().clone())

        settings = {"critic_optimizer": "sgd", "lr_critic_left": left, "seen": look}
        trained(make_run(noise_multiplier=2.0), **settings)
        moves[left] = (seen[0], seen[1] - seen[0])
    assert torch.equal(moves[1.0][0], moves[0.0][0])
    # The same gradient, at five sixths of the rate after one of six steps.
    assert torch.allclose(moves[0.0][1], 5 / 6 * moves[1.0][1], atol=1e-7)
    assert not torch.allclose(moves[0.0][1], moves[1.0][1], atol=1e-7)


def test_every_paid_step_is_asked_once_and_the_generator_asks_nothing(
    trained, make_run, monkeypatch
):
    asked = []
    honest = PaidQuery.check

    def count(self, step):
        asked.append(step)
        honest(self, step)

    monkeypatch.setattr(PaidQuery, "check", count)
    run = make_run(noise_multiplier=2.0)
    trained(run, critic_steps=3)
    assert asked == list(range(run.ledger.entries[0].steps))


def test_the_average_follows_the_generator_only_when_it_moves(trained, generator, make_run):
    still = trained(make_run(noise_multiplier=2.0), critic_steps=7)
    moved = trained(make_run(noise_multiplier=2.0), critic_steps=6)
    assert torch.equal(still.inner.weight, generator.inner.weight)
    assert not torch.equal(moved.inner.weight, generator.inner.weight)
