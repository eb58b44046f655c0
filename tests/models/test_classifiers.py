"""The classifiers: shapes, sizes, and features that depend on their own record alone."""

import pytest
import torch
from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

from dpray import models
from dpray.errors import BadInput
from dpray.models.classifiers import ImageClassifier, NormalisedScatter, make_head


def build(model: str, features: str, shape=(1, 28, 28), classes: int = 10) -> ImageClassifier:
    return models.build(
        "image-classifier", model=model, features=features, shape=list(shape), num_classes=classes
    )


@pytest.mark.parametrize("features", ["pixels", "scatter"])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 30, 18)])
def test_every_model_takes_every_shape(model, features, shape):
    logits = build(model, features, shape, classes=4)(torch.rand(2, *shape))
    assert logits.shape == (2, 4)


def test_the_cnn_is_seed_zeros():
    assert sum(p.numel() for p in build("cnn", "pixels").parameters()) == 421_642


def test_the_tanh_cnn_is_the_small_one_of_the_paper():
    # Papernot et al. (2021), table 1: 26,010 parameters on 28x28x1.
    assert sum(p.numel() for p in build("tanh-cnn", "pixels").parameters()) == 26_010


def test_a_model_that_does_not_fit_the_images_says_so():
    with pytest.raises(BadInput, match="at least 14x14"):
        make_head("tanh-cnn", (1, 8, 8), 10)
    with pytest.raises(BadInput, match="choose from"):
        make_head("resnet", (1, 8, 8), 10)


def test_scattering_is_kymatios_and_has_81_channels_of_a_quarter_size():
    images = torch.rand(3, 1, 28, 28)
    features = NormalisedScatter((1, 28, 28))
    reference = ScatteringTorch2D(J=2, shape=(28, 28))(images).flatten(1, 2)
    assert features.out_shape == (81, 7, 7)
    assert torch.allclose(features.scatter(images), reference, atol=1e-6)


def test_features_of_a_record_do_not_depend_on_the_batch_it_is_in():
    images = torch.rand(6, 1, 28, 28)
    features = NormalisedScatter((1, 28, 28))
    together, alone = features(images), features(images[2:3])
    assert torch.allclose(together[2:3], alone, atol=1e-5)


def test_fixed_filters_are_no_part_of_the_weights():
    names = set(build("linear", "scatter").state_dict())
    assert names == {"head.1.weight", "head.1.bias"}
