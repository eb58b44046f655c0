"""What the methods of the PATE family have in common: teachers, rounds, what is released."""

import dataclasses

import pytest
import torch

from dpray.adversarial import teacher_gan
from dpray.data.splits import partition
from dpray.errors import BadInput
from dpray.methods import find
from dpray.privacy.queries import PaidQuery

TINY = {
    "teachers": 6,
    "teacher_steps": 2,
    "teachers_per_task": 4,
    "rounds": 4,
    "questions": 6,
    "num_fakes": 9,
    "latent": 2,
    "hidden": 4,
}
OWN = {
    "pate-gan": {"student_steps": 2, "student_batch": 6, "memory": 2},
    "datalens": {"teacher_hidden": 3, "signs": 5, "fits": 2},
    "g-pate": {"teacher_hidden": 3, "projections": 2, "bins": 4, "fits": 2},
}


def method(name, **settings):
    return find(name)(**{**TINY, **OWN[name], **settings})


@pytest.mark.parametrize("name", OWN)
def test_what_is_charged_follows_from_the_settings_alone(name, tiny_data, make_run):
    run = make_run(noise_multiplier=3.0)
    made = method(name)
    made.fit(tiny_data, run)
    votes = 2 if name == "g-pate" else 1  # of an image: one for each direction
    assert [entry.steps for entry in run.ledger.entries] == [4]
    assert run.ledger.entries[0].event == made.query(3.0).event
    assert run.ledger.entries[0].event.count == 4 * 6 * votes


@pytest.mark.parametrize("name", OWN)
def test_the_release_holds_the_generator_and_teachers_are_gone(name, tiny_data, make_run):
    run = make_run(noise_multiplier=3.0)
    release = method(name).fit(tiny_data, run)
    names = set(release.module.state_dict())
    assert names == {"inner.weight", "inner.bias", "outer.weight", "outer.bias"}
    assert not (run.workdir / "teachers").exists()


@pytest.mark.parametrize("name", OWN)
def test_a_run_that_was_stopped_ends_with_the_same_generator(
    name, tiny_data, make_run, monkeypatch
):
    made = method(name)
    whole = made.fit(tiny_data, make_run(key=5, noise_multiplier=2.0))
    monkeypatch.setenv("DPRAY_CHECKPOINT_SECONDS", "0")
    run = make_run(key=5, folder="stopped", noise_multiplier=2.0)
    honest, asked = PaidQuery.check, []

    def stop_at_three(self, step):
        if step == 3 and not asked:
            asked.append(step)
            raise KeyboardInterrupt
        honest(self, step)

    monkeypatch.setattr(PaidQuery, "check", stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        made.fit(tiny_data, run)
    resumed = make_run(key=5, folder="stopped", noise_multiplier=2.0)
    resumed.ledger = run.ledger
    resumed.ledger.asked.clear()  # as in a new process
    release = made.fit(tiny_data, resumed)
    for key, value in whole.module.state_dict().items():
        assert torch.equal(value, release.module.state_dict()[key])


@pytest.mark.parametrize("name", OWN)
def test_every_public_number_depends_on_records_through_the_answers_alone(
    name, tiny_data, make_run, monkeypatch
):
    """With answers that say nothing two quite different datasets make the same generator."""

    def mute(self, lesson):
        yield from ()

    monkeypatch.setattr(teacher_gan.Teachers, "answers", mute)
    dark = dataclasses.replace(tiny_data.private, pixels=tiny_data.private.pixels * 0.1)
    other = dataclasses.replace(tiny_data, private=dark)
    first, second = (
        method(name).fit(data, make_run(key=5, noise_multiplier=2.0)) for data in (tiny_data, other)
    )
    for key, value in first.module.state_dict().items():
        assert torch.equal(value, second.module.state_dict()[key])


def test_a_rank_holds_the_records_of_whole_teachers(tiny_data):
    shares = [method("pate-gan").share(tiny_data, rank, 2) for rank in range(2)]
    held = [set(partition(s.private.ids, 6, "pate-gan teachers").tolist()) for s in shares]
    assert not held[0] & held[1]
    assert sum(len(s.private) for s in shares) == tiny_data.num_records


@pytest.mark.parametrize("generator", ["mlp", "conv"])
def test_other_generators_train(generator, tiny_data, make_run):
    made = method("datalens", generator=generator)
    drawn = made.fit(tiny_data, make_run(noise_multiplier=2.0)).sample(
        torch.arange(3), torch.Generator().manual_seed(0)
    )
    assert drawn.shape == (3, *tiny_data.shape)
    assert drawn.isfinite().all()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("pate-gan", {"teachers": 61}, "61 teachers for 60 records"),
        ("pate-gan", {"teachers": 1}, "at least 2"),
        ("pate-gan", {"rounds": 0}, "rounds 0 must be at least 1"),
        ("pate-gan", {"grain": 40}, "grain 40"),
        ("pate-gan", {"teacher_lr": 0.0}, "the rate above 0"),
        ("pate-gan", {"averaging": 1.0}, "below 1"),
        ("pate-gan", {"memory": 0}, "memory 0"),
        ("pate-gan", {"questions": 5}, "5 questions are too few"),
        ("pate-gan", {"jitter": -1.0}, "jitter must be at least 0"),
        ("datalens", {"signs": 65}, "signs 65 are more than the 64 pixels"),
        ("datalens", {"threshold": -1.0}, "threshold at least 0"),
        ("g-pate", {"bins": 1}, "num_options 1"),
        ("g-pate", {"projections": 65}, "projections 65"),
        ("g-pate", {"reach": float("inf")}, "reach inf must be above 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_charged(name, settings, words, tiny_data):
    with pytest.raises(BadInput, match=words):
        method(name, **settings).check(tiny_data)
