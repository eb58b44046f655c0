"""PSG: what is asked is what is charged, images are images, and bad settings stop before paying."""

import dataclasses

import pytest
import torch

from dpray.errors import BadInput
from dpray.matching import room
from dpray.matching.distance import matched_weights
from dpray.methods.psg import Psg
from dpray.models.architectures import convnet
from dpray.privacy import gradients

TINY = {
    "spc": 2,
    "width": 4,
    "iterations": 2,
    "outer": 2,
    "inner": 1,
    "pixel_steps": 3,
    "batch_size": 20,
}


@pytest.fixture
def asked(monkeypatch):
    """The steps and the parameters of every private query."""
    found = []
    real = gradients.noisy_gradient

    def noisy_gradient(model, losses, ids, step, **more):
        found.append((step, [p.dim() for p in more["parameters"]]))
        return real(model, losses, ids, step, **more)

    monkeypatch.setattr("dpray.matching.loop.noisy_gradient", noisy_gradient)
    return found


def test_as_many_queries_are_made_as_are_charged(tiny_data, make_run, asked):
    run = make_run(noise_multiplier=1.0)
    Psg(**{**TINY, "queries": 3, "pixel_steps": 5}).fit(tiny_data, run)
    (entry,) = run.ledger.entries
    assert [step for step, _ in asked] == list(range(entry.steps))
    assert entry.steps == 2 * 2 * 3


def test_biases_and_scales_are_not_asked_for(tiny_data, make_run, asked):
    Psg(**TINY).fit(tiny_data, make_run(noise_multiplier=1.0))
    assert all(min(dimensions) >= 2 for _, dimensions in asked)


def test_the_clip_norm_is_spent_on_matched_weights_alone(tiny_data):
    """Left out, biases make the clipped gradient of the weights longer: signal for nothing."""
    torch.manual_seed(0)
    network = convnet(tiny_data.shape, tiny_data.num_classes, 4)
    private = tiny_data.private

    def losses(rows):
        logits = network(private.pixels[rows])
        return torch.nn.functional.cross_entropy(logits, private.labels[rows], reduction="none")

    weights, every = matched_weights(network), list(network.parameters())
    rows = torch.tensor([3])
    alone = gradients._clipped_sum(network, losses, rows, weights, 0.01, 64, "auto")
    shared = gradients._clipped_sum(network, losses, rows, every, 0.01, 64, "auto")
    pieces = dict(zip(every, shared.split([p.numel() for p in every]), strict=True))
    assert float(alone.norm()) == pytest.approx(0.01, rel=1e-4)
    assert float(torch.cat([pieces[w] for w in weights]).norm()) < 0.0099


def test_labels_are_balanced_and_images_are_images(tiny_data, make_run):
    release = Psg(**TINY).fit(tiny_data, make_run(noise_multiplier=1.0))
    images, labels = release.module.images, release.module.labels
    assert labels.bincount().tolist() == [2] * tiny_data.num_classes
    assert 0 <= images.min() <= images.max() <= 1


def test_the_last_snapshot_is_the_release_and_earlier_ones_are_not(tiny_data, make_run):
    module = Psg(**TINY, snapshots=2).fit(tiny_data, make_run(noise_multiplier=1.0)).module
    assert module.history_steps.tolist() == [2, 4]
    assert torch.equal(module.history[-1], module.images)
    assert not torch.equal(module.history[0], module.images)


def test_a_generator_gives_images_too(tiny_data, make_run):
    settings = {**TINY, "prior": "generator", "prior_width": 2}
    release = Psg(**settings).fit(tiny_data, make_run(noise_multiplier=1.0))
    assert 0 < release.module.images.min() <= release.module.images.max() < 1


def test_without_noise_to_speak_of_images_of_a_class_look_like_it(tiny_data, make_run):
    settings = {**TINY, "iterations": 12, "pixel_steps": 10, "batch_size": 60, "lr_images": 0.1}
    release = Psg(**settings).fit(tiny_data, make_run(noise_multiplier=0.05))
    private = tiny_data.private
    means = torch.stack([private.pixels[private.labels == c].mean(0) for c in range(3)])
    means = means - means.mean(0)
    made = release.module.images - release.module.images.mean(0)
    likeness = (made.flatten(1) @ means.flatten(1).T).argmax(1)
    assert float((likeness == release.module.labels).double().mean()) >= 0.8


def test_an_image_moves_as_far_whatever_the_number_of_images():
    """Each has a share of the mean loss that falls with their number: the rate makes up for it."""
    by_number = {count: Psg(**TINY)._first_lr(count) / count for count in (20, 100, 500)}
    assert len({round(rate, 12) for rate in by_number.values()}) == 1
    assert Psg(**TINY, lr_images=0.7)._first_lr(20) == 0.7
    assert Psg(**TINY, prior="generator", lr_prior=0.02)._first_lr(20) == 0.02


def test_300_queries_are_asked_whatever_the_number_of_images():
    by_spc = {spc: Psg(spc=spc).schedule() for spc in (1, 2, 10, 50)}
    assert all(schedule.steps == 300 for schedule in by_spc.values())
    assert {spc: schedule.outer for spc, schedule in by_spc.items()} == {
        1: 1,
        2: 10,
        10: 10,
        50: 10,
    }
    assert Psg(spc=1, outer=10, iterations=2).schedule().steps == 20


def test_published_loops_follow_from_the_number_of_images():
    paper = Psg.presets["paper"]
    asked = {spc: Psg(**paper, spc=spc).schedule().steps for spc in (1, 10, 20, 50)}
    assert asked == {1: 10_000, 10: 100_000, 20: 200_000, 50: 500_000}
    assert Psg(**paper, spc=20, prior="generator").schedule().steps == 20_000
    assert Psg(**paper, spc=20).schedule().inner == 25


@pytest.mark.parametrize(
    "settings",
    [
        {"spc": 0},
        {"iterations": 0},
        {"pixel_steps": 0},
        {"momentum": 1.0},
        {"final_lr": 1.5},
        {"start_noise": 0.0},
        {"clip_norm": 0.0},
        {"lr_images": float("inf")},
        {"blur": 9.0},
        {"snapshots": -1},
        {"batch_size": 0},
        {"architecture": "resnet18"},  # needs 25x25
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings, tiny_data):
    with pytest.raises(BadInput):
        Psg(**{**TINY, **settings}).check(tiny_data)


def test_one_class_is_refused(tiny_data):
    with pytest.raises(BadInput, match="one class"):
        Psg(**TINY).check(dataclasses.replace(tiny_data, class_names=("all",)))


def test_more_images_than_fit_are_refused_with_a_number_that_does(tiny_data, monkeypatch):
    monkeypatch.setattr(room, "free_memory", lambda device: 50_000_000)
    Psg(**TINY).check(tiny_data)
    with pytest.raises(BadInput, match=r"use spc [1-9]"):
        Psg(**{**TINY, "spc": 100_000}).check(tiny_data)


def test_a_run_goes_on_within_an_iteration(tiny_data, make_run, monkeypatch):
    """Stopped after the third of four steps, in the middle of a network's life."""
    whole = Psg(**TINY).fit(tiny_data, make_run(noise_multiplier=1.0))
    run = make_run(noise_multiplier=1.0)
    run.checkpoints.seconds = 0.0
    real = gradients.noisy_gradient

    def stop(model, losses, ids, step, **more):
        if step == 3:
            raise KeyboardInterrupt
        return real(model, losses, ids, step, **more)

    with monkeypatch.context() as patched:
        patched.setattr("dpray.matching.loop.noisy_gradient", stop)
        with pytest.raises(KeyboardInterrupt):
            Psg(**TINY).fit(tiny_data, run)
    run.ledger.asked.clear()  # a new process
    again = Psg(**TINY).fit(tiny_data, run)
    for name, value in whole.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], value), name
