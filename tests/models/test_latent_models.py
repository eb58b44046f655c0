"""Networks over latents: who answers which label, what a labeller sorts, and what is kept."""

import json
import pickle

import pytest
import torch
from torch import nn

from dpray import models
from dpray.models.latent_models import LatentCritic, LatentDecoder, LatentHistory, sorted_by

SHAPE = (1, 8, 8)
DECODER = {"size": 6, "num_classes": 0, "noise": 2, "hidden": 4}
LABELLER = {
    "model": "image-classifier",
    "arguments": {"model": "cnn", "features": "pixels", "shape": SHAPE, "num_classes": 3},
}


def synthesizer(model="fc-autoencoder", decoder=DECODER, **more):
    torch.manual_seed(0)
    public = {"model": model, "arguments": {"shape": SHAPE, "latent": 6}}
    return models.build("latent-synthesizer", public=public, decoder=decoder, **more).eval()


def draw(module, labels, seed=1):
    with torch.no_grad():
        return module(labels, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("model", ["fc-autoencoder", "conv-latent-generator"])
def test_every_label_goes_to_its_own_learner_in_the_order_asked(model):
    module = synthesizer(model, num_learners=3)
    shown = []
    for place, learner in enumerate(module.learners):
        with torch.no_grad():
            learner.outer.weight.zero_()  # the same unit whatever the noise
            learner.outer.bias.fill_(4.0 * place - 3)
            shown.append(module.public_model.decode(learner.outer.bias[None])[0])
    labels = torch.tensor([2, 0, 2, 2, 0])  # nobody asks for 1
    images = draw(module, labels)
    assert torch.allclose(images, torch.stack([shown[label] for label in labels]), atol=1e-5)
    assert not torch.allclose(shown[0], shown[2], atol=1e-3)


def test_units_are_taken_back_to_latents_by_the_scale():
    module = synthesizer(decoder={**DECODER, "num_classes": 3})
    module.mean.copy_(torch.arange(6.0))
    module.matrix.copy_(torch.arange(36.0).reshape(6, 6) / 9)
    labels = torch.tensor([0, 1, 2])
    units = draw(module.learners[0], labels)
    with torch.no_grad():
        expected = module.public_model.decode(units @ module.matrix + module.mean)
    assert torch.equal(draw(module, labels), expected)


class Brightness(nn.Module):
    """Sorts images by their mean into thirds of [0, 1]."""

    def forward(self, images):
        middles = torch.tensor([1.0, 3.0, 5.0]) / 6
        return -100 * (images.flatten(1).mean(1, keepdim=True) - middles).square()


def flat_images(most, seed=0):
    """Images of one grey each, up to `most`."""
    rng = torch.Generator().manual_seed(seed)
    return lambda count: (most * torch.rand(count, 1, 1, 1, generator=rng)).expand(-1, *SHAPE)


def test_sorted_images_are_of_the_class_that_was_asked_for():
    labels = torch.tensor([2, 0, 1] * 20 + [2] * 30)
    images = sorted_by(Brightness(), flat_images(1.0), labels)
    assert torch.equal(Brightness()(images).argmax(1), labels)
    assert len(images.flatten(1)[:, 0].unique()) == len(labels)  # none of them twice


def test_a_class_that_never_comes_up_gets_the_images_most_like_it():
    labels = torch.tensor([0, 2] * 20)
    images = sorted_by(Brightness(), flat_images(0.5), labels)
    assert images.shape == (40, *SHAPE)
    own = images[labels == 2].flatten(1)[:, 0]
    assert own.min() > 0.48 and len(own.unique()) == 5
    assert (Brightness()(images[labels == 0]).argmax(1) == 0).all()


def test_a_class_that_comes_up_rarely_gets_nothing_of_another_class():
    """One image in twenty-five is of the last class: all rounds find fewer than are wanted."""
    labels = torch.full((60,), 2)
    images = sorted_by(Brightness(), flat_images(2 / 3 / 0.96), labels)
    assert images.shape == (60, *SHAPE)
    assert (Brightness()(images).argmax(1) == 2).all()
    assert 15 <= len(images.flatten(1)[:, 0].unique()) < 60


@pytest.mark.parametrize("labels", [[], [1], [0, 1, 2, 2]])
def test_a_labeller_gives_as_many_images_as_labels(labels):
    module = synthesizer(labeller=LABELLER)
    assert draw(module, torch.tensor(labels, dtype=torch.long)).shape == (len(labels), *SHAPE)


@pytest.mark.parametrize(
    ("count", "steps", "taken"),
    [(1, 7, [7]), (3, 7, [3, 5, 7]), (4, 4, [1, 2, 3, 4]), (3, 2, [1, 2, 2]), (0, 5, [])],
)
def test_snapshots_are_spread_over_the_steps_and_the_last_is_the_end(count, steps, taken):
    history, learner = LatentHistory(count, DECODER), LatentDecoder(**DECODER)
    for done in range(1, steps + 1):
        with torch.no_grad():
            learner.inner.bias.fill_(float(done))
        history.take(done, steps, learner)
    assert history.steps.tolist() == taken
    assert [int(one.inner.bias[0]) for one in history.decoders] == taken


def test_images_of_the_last_snapshot_are_those_of_the_learner():
    module = synthesizer(num_learners=2, num_snapshots=2)
    labels = torch.tensor([1, 0, 1])
    for history, learner in zip(module.histories, module.learners, strict=True):
        history.take(4, 4, learner)
    with torch.no_grad():
        last, first = (module.after(k, labels, torch.Generator().manual_seed(1)) for k in (1, 0))
    assert torch.equal(last, draw(module, labels))
    assert not torch.equal(first, last)


@pytest.mark.parametrize("activation", ["tanh", "leaky-relu"])
def test_a_synthesizer_rebuilt_from_json_gives_the_same_images(activation):
    """With the activation that it was trained with."""
    recipe = {
        "public": {"model": "fc-latent-generator", "arguments": {"shape": SHAPE, "latent": 6}},
        "decoder": {**DECODER, "activation": activation, "label_scale": 2.0},
        "num_learners": 1,
        "num_snapshots": 2,
        "labeller": LABELLER,
    }
    torch.manual_seed(3)
    first = models.build("latent-synthesizer", **recipe).eval()
    again = models.build("latent-synthesizer", **json.loads(json.dumps(recipe))).eval()
    labels = torch.tensor([0, 2, 1, 1])
    assert not torch.equal(draw(again, labels), draw(first, labels))
    again.load_state_dict(first.state_dict())
    assert torch.equal(draw(again, labels), draw(first, labels))
    travelled = pickle.loads(pickle.dumps(first))
    assert torch.equal(draw(travelled, labels), draw(first, labels))


def test_labels_reach_learners_that_know_classes_and_no_others():
    units = torch.randn(3, 6)
    first, other = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.long)
    for num_classes in (0, 2):
        critic = LatentCritic(6, num_classes, hidden=4)
        decoder = LatentDecoder(6, num_classes, 2, 4)
        assert torch.equal(critic(units, first), critic(units, other)) == (num_classes == 0)
        assert torch.equal(draw(decoder, first), draw(decoder, other)) == (num_classes == 0)
