"""PATE-GAN: what its votes cost, and what the student hears of them."""

import pytest
import torch

from dpray import models
from dpray.methods.pate_gan import PateGan, Student, Votes
from dpray.privacy.accounting import cost_of
from dpray.privacy.queries import PaidQuery
from dpray.stacks.lessons import Lesson

TINY = {"teachers": 6, "rounds": 3, "questions": 4, "student_steps": 1, "judged_by": "score"}


def student(tiny_data, make_run, **settings):
    method = PateGan(**{**TINY, **settings})
    generator = torch.nn.Linear(1, 1)
    paid = PaidQuery(method.query(1.0), entry=0)
    return Student(method, generator, paid, tiny_data, make_run())


def test_the_published_settings_cost_thousands_without_a_look_at_the_votes():
    """Sixty teachers and a noise that leaves a majority: 64 votes a step for 10,000 steps."""
    paper = PateGan(**PateGan.presets["paper"])
    noise = 10.0 / paper.query(1.0).sensitivity
    assert cost_of([paper.query(noise).event], 1e-5, coarse=True).epsilon > 5000
    # What epsilon 10 affords is noise that drowns all of them.
    affordable = paper.query(400.0)
    assert affordable.noise_std > 9 * paper.teachers
    assert cost_of([affordable.event], 1e-5, coarse=True).epsilon == pytest.approx(10.0, rel=0.01)


def test_the_vote_of_a_teacher_is_the_side_of_its_score(tiny_data, make_run):
    pupil = student(tiny_data, make_run)
    raw = torch.tensor([[-1.0, 2.0, 0.0, float("nan")]]).repeat(6, 1)
    noisy = pupil.ask(iter([raw]), torch.arange(6), 0)
    noise = pupil.run.key.normals("pate-gan/noise", 0, 8).reshape(4, 2) * 2**0.5
    counts = (noisy - noise).round().tolist()
    assert counts == [[6, 0], [0, 6], [6, 0], [6, 0]]


def test_by_comparison_each_teacher_likes_some_images_of_a_class_better(tiny_data, make_run):
    pupil = student(tiny_data, make_run, judged_by="comparison", questions=6)
    raw = torch.tensor([[-9.0, -5.0, 1.0, -7.0, -3.0, 2.0], [0.0, 0.0, 0.0, -1.0, 1.0, 5.0]])
    judged = pupil._judged(raw)  # classes 0, 1, 2, 0, 1, 2
    assert judged.tolist() == [[-1, -1, -0.5, 1, 1, 0.5], [0.5, -0.5, -2.5, -0.5, 0.5, 2.5]]


@pytest.mark.parametrize(
    ("votes", "targets"), [("share", [1.0, 0.5, 0.25, -0.5]), ("majority", [1.0, 0.0, 0.0, 0.0])]
)
def test_the_student_hears_the_share_of_votes_or_their_majority(
    votes, targets, tiny_data, make_run, monkeypatch
):
    pupil = student(tiny_data, make_run, votes=votes)
    monkeypatch.setattr(pupil, "_student_step", lambda step, rng: None)
    monkeypatch.setattr(pupil, "_generator_step", lambda rng: None)
    real = torch.tensor([6.0, 3.0, 1.5, -3.0]).double()  # of six votes, with noise
    asked = torch.rand(4, 64)
    lesson = Lesson(0, asked, torch.arange(4) % 3, asked, torch.arange(4) % 3)
    pupil.learn(1, lesson, torch.stack([6 - real, real], 1))
    assert pupil.votes.targets[1].tolist() == pytest.approx(targets)
    assert torch.equal(pupil.votes.images[1], asked)


def test_only_votes_that_were_given_are_learnt_from():
    votes = Votes(3, 4, 5)
    votes.add(0, torch.ones(4, 5), torch.ones(4, dtype=torch.long), torch.ones(4))
    rng = torch.Generator().manual_seed(0)
    assert (votes.drawn(0, 50, rng)[2] == 1).all()
    votes.add(3, torch.ones(4, 5), torch.ones(4, dtype=torch.long), torch.full((4,), 2.0))
    assert set(votes.drawn(3, 50, rng)[2].tolist()) == {0.0, 2.0}


def test_a_student_learns_votes_and_the_generator_goes_where_they_are(tiny_data, make_run):
    """Teachers that like bright images, without noise: images become brighter."""
    method = PateGan(**{**TINY, "rounds": 6, "questions": 60, "student_steps": 40, "lr": 3e-3})
    run = make_run(noise_multiplier=1e-2)
    torch.manual_seed(0)
    generator = models.build(method._model, **method._arguments(tiny_data))
    paid = PaidQuery(method.query(1e-2), entry=0)
    pupil = Student(method, generator, paid, tiny_data, run)
    before = method.lesson(generator, 0, tiny_data, run).asked.mean()
    for step in range(6):
        lesson = method.lesson(generator, step, tiny_data, run)
        scores = lesson.asked.mean(1) - before
        pupil.learn(step, lesson, pupil.ask(iter([scores.expand(6, -1)]), torch.arange(6), step))
    after = method.lesson(generator, 6, tiny_data, run).asked.mean()
    assert after > before + 0.05
