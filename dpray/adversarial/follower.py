"""A generator that follows directions: the public half of G-PATE and DataLens.

Each of its images is to move a little along a released direction, and the generator is fitted to
the images so moved. All of it is post-processing of what was released.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from dpray.adversarial.teacher_gan import Pupil, TeacherGan, asked_images
from dpray.contract import Run
from dpray.stacks.lessons import Lesson


class Follower(Pupil):
    """`stride` is how far an image moves along a direction, `fits` how many steps follow it."""

    def __init__(
        self, method: TeacherGan, generator: nn.Module, run: Run, *, stride: float, fits: int
    ) -> None:
        self.method, self.generator, self.run = method, generator, run
        self.stride, self.fits = stride, fits
        self.modules = {}
        self.optimizers = (torch.optim.Adam(generator.parameters(), lr=method.lr),)

    @abstractmethod
    def directions(self, step: int, noisy_answers: Tensor) -> Tensor:
        """(Q, D): which way each of the judged images is to go."""

    def learn(self, step: int, lesson: Lesson, noisy_answers: Tensor) -> None:
        moved = lesson.asked + self.stride * self.directions(step, noisy_answers).float()
        targets = moved.clamp(0, 1).to(self.run.device)
        params = list(self.generator.parameters())
        for _ in range(self.fits):
            # The same draw as when they were judged, so the same images but for what was learnt.
            rng = self.run.generator(asked_images(step))
            images = self.method.judged(self.generator(lesson.asked_labels, rng))
            loss = (images - targets).square().sum(1).mean()
            for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.grad = grad
            self.optimizers[0].step()
