"""The pairs of stage 1: sizes of the paper's, any image, and fit for training side by side."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, vmap

from dpray import models
from dpray.errors import BadInput
from dpray.models.autoencoders import Encoder, VariationalAutoencoder
from dpray.models.conditional_vaes import ConvDecoder, ConvEncoder
from dpray.models.generators import ConditionalDecoder, one_hot
from dpray.stacks.stack import stacked


def count(module):
    return sum(p.numel() for p in module.parameters())


def mlp_pair(shape=(1, 6, 5), grain=2):
    decoder = ConditionalDecoder(shape, 3, 2, 7, 2.0, grain)
    return VariationalAutoencoder(Encoder(30, 3, 2, 7, 2.0), decoder)


def conv_pair(shape=(1, 6, 5), channels=(6, 4)):
    return VariationalAutoencoder(
        ConvEncoder(shape, 3, 2, channels), ConvDecoder(shape, 3, 2, channels)
    )


def test_the_pair_is_as_large_as_the_papers():
    encoder, decoder = (make((1, 28, 28), 10, 8, (512, 256)) for make in (ConvEncoder, ConvDecoder))
    assert count(encoder) == pytest.approx(1.60e6, rel=0.01)
    assert count(decoder) == pytest.approx(2.25e6, rel=0.01)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64), (2, 31, 18), (1, 5, 1)])
@pytest.mark.parametrize("channels", [(4,), (8, 6), (32, 8, 4)])
def test_the_pair_takes_every_shape(shape, channels):
    labels = torch.tensor([0, 2])
    mean, log_variance = ConvEncoder(shape, 3, 5, channels)(torch.rand(2, *shape), labels)
    assert mean.shape == log_variance.shape == (2, 5)
    decoder = ConvDecoder(shape, 3, 5, channels)
    assert decoder.logits(mean, labels).shape == (2, shape[0] * shape[1] * shape[2])
    images = decoder(labels, torch.Generator().manual_seed(0))
    assert images.shape == (2, *shape)
    assert 0 <= images.min() <= images.max() <= 1


def test_the_label_reaches_encoder_and_decoder():
    pair, images = conv_pair(), torch.rand(1, 1, 6, 5).expand(3, -1, -1, -1)
    labels = torch.arange(3)
    assert pair.encoder(images, labels)[0].std(0).min() > 0
    assert pair.decoder.logits(torch.zeros(3, 2), labels).std(0).max() > 0


@pytest.mark.parametrize("make", [mlp_pair, conv_pair])
def test_no_pair_has_buffers_and_states_are_the_parameters(make):
    pair = make()
    assert list(pair.buffers()) == []
    assert list(pair.state_dict()) == [name for name, _ in pair.named_parameters()]


@pytest.mark.parametrize("make", [mlp_pair, conv_pair])
def test_pairs_side_by_side_give_the_losses_and_gradients_of_each(make):
    pairs = [make() for _ in range(3)]
    stack = {name: value.requires_grad_() for name, value in stacked(pairs).items()}
    pixels, labels = torch.rand(3, 4, 1, 6, 5), torch.randint(3, (3, 4))
    noise = torch.randn(3, 4, 2)
    fn = vmap(lambda weights, *data: functional_call(pairs[0], weights, (*data, 1.5)))
    losses = fn(stack, pixels, labels, noise)
    losses.sum().backward()
    for i, pair in enumerate(pairs):
        own = pair.example_losses(pixels[i], labels[i], noise[i], 1.5)
        own.sum().backward()
        assert torch.allclose(losses[i], own, rtol=1e-4)
        for name, parameter in pair.named_parameters():
            assert torch.allclose(stack[name].grad[i], parameter.grad, rtol=1e-3, atol=1e-4)


def test_one_hot_is_torchs_and_refuses_a_label_that_is_none():
    labels = torch.tensor([2, 0, 1])
    like = torch.zeros(1, dtype=torch.float32)
    assert torch.equal(one_hot(labels, 3, like=like), F.one_hot(labels, 3).float())
    with pytest.raises(IndexError):
        one_hot(torch.tensor([3]), 3, like=like)


def test_a_grain_gives_torchs_bilinear_enlargement():
    decoder = ConditionalDecoder((2, 9, 7), 3, 2, 5, grain=3)
    assert decoder.outer.out_features == 2 * 3 * 3
    latents, labels = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    words = F.one_hot(labels, 3).float()
    small = decoder.outer(F.relu(decoder.inner(torch.cat([latents, words], 1))))
    large = F.interpolate(small.reshape(4, 2, 3, 3), size=(9, 7), mode="bilinear").flatten(1)
    assert torch.allclose(decoder.logits(latents, labels), large, atol=1e-6)
    assert decoder(labels, torch.Generator()).shape == (4, 2, 9, 7)


def test_without_a_grain_the_decoder_is_two_layers_and_nothing_else():
    decoder = models.build(
        "conditional-decoder", shape=[1, 6, 5], num_classes=3, latent=2, hidden=7, label_scale=2.0
    )
    latents, labels = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    inputs = torch.cat([latents, 2.0 * F.one_hot(labels, 3).float()], 1)
    assert torch.equal(decoder.logits(latents, labels), decoder.outer(decoder.inner(inputs).relu()))
    assert set(decoder.state_dict()) == {
        *("inner.weight", "inner.bias", "outer.weight", "outer.bias")
    }


@pytest.mark.parametrize("grain", [0, -1, 6])
def test_a_grain_that_does_not_fit_is_refused(grain):
    with pytest.raises(BadInput, match="choose from 1 to 5"):
        ConditionalDecoder((1, 6, 5), 3, 2, 7, grain=grain)


def test_channels_that_make_no_sense_are_refused():
    for channels in ([], [8, 0]):
        with pytest.raises(BadInput, match="at least 1"):
            ConvDecoder((1, 6, 5), 3, 2, channels)
