"""The small classifier that is trained without privacy: learns, and follows from its seed alone."""

import torch

from dpray.data.records import Images
from dpray.plain_classifier import fitting_head, train_classifier


def test_it_learns_public_records_and_tells_new_ones_apart(tiny_data):
    classifier = train_classifier(tiny_data.public.labelling, 3)
    found = classifier(tiny_data.private.pixels).argmax(1)
    assert (found == tiny_data.private.labels).double().mean() > 0.9
    assert not classifier.training
    assert not any(p.requires_grad for p in classifier.parameters())


def test_the_same_seed_gives_the_same_one_whoever_draws_besides(tiny_data):
    images = tiny_data.public.labelling
    torch.manual_seed(1)
    first = train_classifier(images, 3, seed=4).state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # nothing was drawn from the shared generator
    again = train_classifier(images, 3, seed=4).state_dict()
    other = train_classifier(images, 3, seed=5).state_dict()
    assert all(torch.equal(first[name], value) for name, value in again.items())
    assert not all(torch.equal(first[name], value) for name, value in other.items())


def test_images_too_small_for_convolutions_get_a_plain_network():
    assert (fitting_head((1, 28, 28)), fitting_head((3, 2, 9))) == ("cnn", "mlp")
    thin = Images(torch.rand(8, 3, 2, 9), torch.arange(8) % 2, torch.arange(8))
    assert train_classifier(thin, 2)(thin.pixels).shape == (8, 2)
