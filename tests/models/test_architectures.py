"""The networks that synthetic images are measured by: sizes, refusals, and nothing over a batch."""

import pytest
import torch
from torch import nn

from dpray.errors import BadInput
from dpray.models import yardsticks
from dpray.models.architectures import ARCHITECTURES, SMALLEST, convnet, make_architecture


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_gives_one_logit_per_class(name, shape):
    network = make_architecture(name, shape, 7)
    assert network(torch.rand(2, *shape)).shape == (2, 7)


def test_the_convnet_is_that_of_private_set_generation():
    assert parameters(convnet((1, 28, 28), 10)) == 317_706


def test_the_width_of_the_convnet_can_be_chosen():
    network = convnet((1, 28, 28), 10, width=16)
    assert parameters(network) == 16 * 10 + 2 * (16 * 145) + 3 * 32 + 10 * 257


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize(("name", "flat"), [("lenet", 84), ("alexnet", 3072), ("vgg11", 512)])
def test_the_last_layer_has_the_size_of_the_paper(name, flat, shape):
    assert make_architecture(name, shape, 10)[-1].in_features == flat


def test_an_image_that_is_too_small_is_refused_with_the_size_that_fits():
    with pytest.raises(BadInput, match="vgg11 needs images of at least 28x28, these are 16x16"):
        make_architecture("vgg11", (1, 16, 16), 10)


@pytest.mark.parametrize(("name", "side"), SMALLEST.items())
def test_the_smallest_size_that_is_said_to_fit_does(name, side):
    network = make_architecture(name, (1, side, side), 3)
    assert network(torch.rand(2, 1, side, side)).isfinite().all()


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_no_layer_mixes_the_images_of_a_batch(name):
    network = make_architecture(name, (1, 28, 28), 3)
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(network(images)[:1], network(images[:1]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 9, 13)])
@pytest.mark.parametrize("make", [yardsticks.mlp, yardsticks.cnn])
def test_the_yardsticks_take_any_shape(make, shape):
    assert make(shape, 4)(torch.rand(5, *shape)).shape == (5, 4)


def test_the_yardsticks_have_the_sizes_of_the_paper():
    assert parameters(yardsticks.mlp((1, 28, 28), 10)) == 784 * 100 + 100 + 1010
    assert parameters(yardsticks.cnn((1, 28, 28), 10)) == 320 + 18_496 + 31_370


def test_half_dropout_keeps_half_of_the_values_and_doubles_them():
    torch.manual_seed(0)
    kept = yardsticks.HalfDropout()(torch.ones(100, 3, 11, 13))
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert abs(kept.mean().item() - 1) < 0.03  # six standard deviations


def test_half_dropout_draws_each_value_on_its_own_and_nothing_in_evaluation():
    torch.manual_seed(0)
    values = torch.ones(64, 8, 10, 10).contiguous(memory_format=torch.channels_last)
    dropout = yardsticks.HalfDropout()
    first, second = dropout(values) - 1, dropout(values) - 1
    assert abs((first * second).mean().item()) < 0.03
    for axis in range(4):
        assert abs((first * first.roll(1, axis)).mean().item()) < 0.03
    assert torch.equal(dropout.eval()(values), values)
