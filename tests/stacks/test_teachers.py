"""Teachers: each knows its own records and public things, and answers for itself."""

import dataclasses

import pytest
import torch

from dpray.errors import BadInput
from dpray.pool import SerialPool
from dpray.stacks.lessons import Lesson, TeacherJob, TeacherSettings, teach_block
from dpray.stacks.stack import repeated
from dpray.stacks.subsets import Subsets
from dpray.stacks.teachers import Teachers
from dpray.stacks.versions import EncoderVersions

SETTINGS = TeacherSettings(
    inputs=30, num_classes=3, hidden=4, steps=5, lr=1e-2, batch_size=6, answer="scores"
)


def lesson(number=0):
    rng = torch.Generator().manual_seed(number)
    fakes, asked = torch.rand(20, 30, generator=rng), torch.rand(7, 30, generator=rng)
    return Lesson(number, fakes, torch.arange(20) % 3, asked, torch.arange(7) % 3)


def teachers(subsets, folder, settings=SETTINGS, block=2):
    versions = EncoderVersions(folder, made_by="tests", say=print)
    return Teachers(subsets, torch.arange(6), versions, SerialPool(), settings, block)


def answers(subsets, folder, settings=SETTINGS, block=2):
    made = teachers(subsets, folder, settings, block)
    made.start(0)
    for number in range(2):
        found = torch.cat(list(made.answers(lesson(number))))
    return found


@pytest.mark.parametrize("answer", ["scores", "gradients"])
def test_a_record_changes_what_its_own_teacher_says_and_no_bit_of_the_others(
    answer, images, numbers, tmp_path
):
    settings = dataclasses.replace(SETTINGS, answer=answer)
    whole = answers(Subsets(images, numbers, 6), tmp_path / "a", settings)
    kept = torch.arange(1, len(numbers))
    less = answers(Subsets(images[kept], numbers[kept], 6), tmp_path / "b", settings)
    changed = [k for k in range(6) if not torch.equal(whole[k], less[k])]
    assert changed == [int(numbers[0])]


@pytest.mark.parametrize("hidden", [0, 4])
def test_a_gradient_is_that_of_the_score(hidden, subsets):
    settings = dataclasses.replace(SETTINGS, hidden=hidden)
    batch, shown = subsets.batch(torch.tensor([1, 5])), lesson()
    start = repeated(settings.build(), 2)
    taught, scores = teach_block(TeacherJob((1, 5), batch, start, settings), shown)
    as_gradients = dataclasses.replace(settings, answer="gradients")
    again, gradients = teach_block(TeacherJob((1, 5), batch, start, as_gradients), shown)
    assert all(torch.equal(taught[name], again[name]) for name in taught)
    critic = settings.build()
    critic.load_state_dict({name: value[1] for name, value in taught.items()})
    asked = shown.asked.clone().requires_grad_()
    torch.testing.assert_close(critic(asked, shown.asked_labels), scores[1])
    critic(asked, shown.asked_labels).sum().backward()
    torch.testing.assert_close(asked.grad, gradients[1])


def test_blocks_change_nothing_but_rounding(subsets, tmp_path):
    one = answers(subsets, tmp_path / "a", block=1)
    all_at_once = answers(subsets, tmp_path / "b", block=6)
    torch.testing.assert_close(one, all_at_once, atol=1e-4, rtol=0)


def test_a_teacher_learns_to_tell_its_records_from_generated_images(subsets):
    settings = dataclasses.replace(SETTINGS, steps=200)
    shown = lesson()
    dark = dataclasses.replace(shown, fakes=shown.fakes * 0.1, asked=shown.asked * 0.1)
    batch = subsets.batch(torch.tensor([5]))
    bright = dataclasses.replace(batch, pixels=0.5 + 0.5 * batch.pixels)
    job = TeacherJob((5,), bright, repeated(settings.build(), 1), settings)
    _, scores = teach_block(job, dark)
    assert (scores < -2).all()


def test_a_teacher_without_records_answers_too(subsets):
    job = TeacherJob(
        (3,), subsets.batch(torch.tensor([3])), repeated(SETTINGS.build(), 1), SETTINGS
    )
    _, scores = teach_block(job, lesson())
    assert scores.shape == (1, 7) and scores.isfinite().all()


def test_teachers_come_back_as_a_checkpoint_left_them(subsets, tmp_path):
    first = teachers(subsets, tmp_path / "teachers")
    first.start(0)
    list(first.answers(lesson(0)))
    first.keep(1)
    first.kept(1)
    expected = torch.cat(list(first.answers(lesson(1))))
    first.keep(2)  # an attempt that was stopped before its checkpoint
    again = teachers(subsets, tmp_path / "teachers")
    again.start(1)
    assert torch.equal(torch.cat(list(again.answers(lesson(1)))), expected)
    again.remove()
    assert not (tmp_path / "teachers").exists()


@pytest.mark.parametrize("wrong", [{"hidden": -1}, {"steps": 0}, {"lr": float("nan")}])
def test_teachers_that_cannot_be_taught_are_refused(wrong):
    with pytest.raises(BadInput, match="teachers of"):
        dataclasses.replace(SETTINGS, **wrong)
