"""AuGM: what it refuses, what it reads, and what its release is made of."""

from dataclasses import replace

import pytest
import torch

from dpray.data.records import PublicData
from dpray.errors import BadInput
from dpray.methods.augm import Augm

TINY = {"latent": 3, "hidden": 6, "images_per_class": 4, "batch_size": 20, "epochs": 2}


@pytest.fixture
def related(tiny_data):
    """Private records with public ones of the same classes beside them."""
    public = tiny_data.private
    images = replace(public, pixels=public.pixels.flip(0), labels=public.labels.flip(0))
    beside = PublicData("related", images, tiny_data.class_names, "related")
    return replace(tiny_data, public=beside)


def test_it_releases_public_images_passed_through_and_a_few_of_each_class(related, make_run):
    release = Augm(**TINY).fit(related, make_run(epsilon=10.0))
    assert release.module.labels.bincount().tolist() == [4, 4, 4]
    images = release.sample(torch.tensor([0, 2, 1]), torch.Generator().manual_seed(0))
    assert images.shape == (3, 1, 16, 16)


def test_the_images_it_holds_are_public_ones(related, make_run):
    module = Augm(**TINY).fit(related, make_run(epsilon=10.0)).module
    public = (related.public.images.pixels * 255).round().to(torch.uint8).flatten(1)
    for image in module.inputs.flatten(1):
        assert (public == image).all(1).any()


def test_labels_of_private_records_change_nothing(related, make_run):
    other = replace(related.private, labels=related.private.labels.roll(1))
    first = Augm(**TINY).fit(related, make_run(epsilon=10.0, key=3)).module
    second = Augm(**TINY).fit(replace(related, private=other), make_run(epsilon=10.0, key=3)).module
    for one, two in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_private_pixels_do_change_it(related, make_run):
    other = replace(related.private, pixels=1 - related.private.pixels)
    run = make_run(epsilon=10.0, key=3)
    first = Augm(**TINY).fit(related, make_run(epsilon=10.0, key=3)).module
    second = Augm(**TINY).fit(replace(related, private=other), run).module
    assert not torch.equal(first.autoencoder.out.weight, second.autoencoder.out.weight)


def test_public_images_of_other_classes_are_refused(related):
    public = replace(related.public, class_names=("x", "y", "z"))
    with pytest.raises(BadInput, match=r"of the private classes a, b, c; related has x, y, z"):
        Augm(**TINY).check(replace(related, public=public))


def test_a_class_without_a_public_image_is_refused(related):
    few = related.public.images[related.public.images.labels != 1]
    with pytest.raises(BadInput, match="no image of class b"):
        Augm(**TINY).check(replace(related, public=replace(related.public, images=few)))


def test_it_does_nothing_without_public_data(tiny_data):
    with pytest.raises(BadInput, match="augm needs public data"):
        Augm(**TINY).check(replace(tiny_data, public=None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, "hidden 0 must be at least 1"),
        ({"lr": 0.0}, "lr 0 must be above 0"),
        ({"averaging": 1.0}, "averaging 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message, related):
    with pytest.raises(BadInput, match=message):
        Augm(**{**TINY, **settings}).check(related)
