from __future__ import annotations

import torch

from dpray.matching.images import NoisyStart, balanced_labels

SHAPE = (1, 8, 8)


def make(blur: float) -> NoisyStart:
    return NoisyStart(balanced_labels(2, 3), SHAPE, 0.3, blur, torch.Generator().manual_seed(1))


def test_without_blur_pixels_are_seen_as_they_are():
    images = make(blur=0.0)
    assert torch.equal(images.all(), images.pixels.detach())


def test_a_blur_takes_speckles_away_and_keeps_even_parts():
    images = make(blur=0.6)
    assert images.all().std() < 0.6 * images.pixels.std()
    with torch.no_grad():
        images.pixels.fill_(0.7)
    inner = images.all()[:, :, 2:-2, 2:-2]
    assert torch.allclose(inner, torch.full_like(inner, 0.7))


def test_given_images_are_neither_blurred_nor_learnt():
    images, rows = make(blur=0.6), torch.tensor([0, 4])
    given = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(3))
    before = images.all()
    images.give(rows, given)
    assert torch.equal(images.all()[rows], given)
    others = torch.tensor([1, 2, 3, 5])
    assert torch.equal(images.all()[others], before[others])
    (gradient,) = torch.autograd.grad(images(torch.arange(6)).square().sum(), [images.pixels])
    assert not gradient[rows].any() and gradient[others].any(dim=(1, 2, 3)).all()
