"""Random features: bounded whatever comes in, centred on what is public, one record at a time."""

import pytest
import torch

from dpray.models.random_features import RandomFeatures


def make(shape=(1, 16, 16), width=4, seed=0):
    return RandomFeatures(shape, width, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 15, 11)])
def test_there_are_as_many_features_as_said_and_their_norm_is_one(shape):
    network = make(shape)
    features = network(torch.rand(5, *shape))
    assert features.shape == (5, network.num_features)
    assert torch.allclose(features.norm(dim=1), torch.ones(5), atol=1e-5)


def test_the_first_layer_is_the_convolution_it_stands_for():
    network, images = make((3, 14, 10)), torch.rand(4, 3, 14, 10)
    weight, bias = network.get_buffer("weight0"), network.get_buffer("bias0")
    expected = torch.nn.functional.conv2d(images, weight, bias, stride=2, padding=2).relu()
    assert torch.allclose(network._first(images), expected, atol=1e-5)


def test_a_centre_takes_out_what_all_images_share():
    network, images = make(), 0.5 + 0.1 * torch.rand(40, 1, 16, 16)
    together = network(images).mean(0).norm()
    network.centre_on(images)
    assert network(images).mean(0).norm() < 0.3 * together


def test_features_of_an_image_do_not_depend_on_the_others():
    network, images = make(), torch.rand(6, 1, 16, 16)
    network.centre_on(torch.rand(10, 1, 16, 16))
    alone = torch.cat([network(image.unsqueeze(0)) for image in images])
    assert torch.allclose(network(images), alone, atol=1e-5)


def test_another_seed_gives_other_features():
    image = torch.rand(1, 1, 16, 16)
    assert torch.equal(make(seed=1)(image), make(seed=1)(image))
    assert not torch.allclose(make(seed=1)(image), make(seed=2)(image))
