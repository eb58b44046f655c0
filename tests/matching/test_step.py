"""A step of the images follows the gradient of the distance, also when two ranks share it."""

import threading
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F

from dpray.matching.distance import matched_weights, row_distance
from dpray.matching.images import GeneratedImages, NoisyStart, balanced_labels
from dpray.matching.step import set_matching_gradient, train_on_images
from dpray.models.architectures import convnet
from dpray.world import SOLO

SHAPE = (1, 8, 8)


@dataclass(frozen=True)
class Thread:
    """A rank that is a thread: adds up what the ranks bring."""

    rank: int
    size: int
    meet: threading.Barrier
    brought: dict = field(default_factory=dict)

    def sum(self, value):
        self.brought[self.rank] = value
        self.meet.wait()
        total = sum(self.brought[rank] for rank in range(self.size))
        self.meet.wait()
        return total


@pytest.fixture
def network():
    torch.manual_seed(1)
    return convnet(SHAPE, 3, width=4)


def make_images():
    return NoisyStart(balanced_labels(3, 2), SHAPE, 0.5, 0.0, torch.Generator().manual_seed(2))


def targets(network):
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(w.shape, generator=rng) for w in matched_weights(network)]


def test_the_gradient_is_that_of_the_distance(network):
    images, weights, target = make_images(), matched_weights(network), targets(network)
    set_matching_gradient(network, weights, target, images, torch.arange(6), SOLO)
    loss = F.cross_entropy(network(images.pixels), images.labels)
    gradient = torch.autograd.grad(loss, weights, create_graph=True)
    (expected,) = torch.autograd.grad(row_distance(target, gradient), images.pixels)
    assert torch.allclose(images.pixels.grad, expected, atol=1e-6)


def test_images_that_are_not_matched_do_not_move(network):
    images = make_images()
    set_matching_gradient(
        network, matched_weights(network), targets(network), images, torch.tensor([0, 1]), SOLO
    )
    assert images.pixels.grad[:2].abs().sum() > 0
    assert images.pixels.grad[2:].abs().sum() == 0


@pytest.mark.parametrize("size", [2, 7])  # with seven, one rank has no image at all
def test_ranks_that_share_the_images_find_the_gradient_of_one(network, size):
    alone = make_images()
    weights, target = matched_weights(network), targets(network)
    set_matching_gradient(network, weights, target, alone, torch.arange(6), SOLO)
    meet, brought = threading.Barrier(size), {}
    shared = [make_images() for _ in range(size)]

    def work(rank):
        world = Thread(rank, size, meet, brought)
        set_matching_gradient(network, weights, target, shared[rank], torch.arange(6), world)

    in_threads(work, size)
    for images in shared:
        assert torch.allclose(images.pixels.grad, alone.pixels.grad, atol=1e-6)


def test_a_generator_learns_the_same_way(network):
    labels = balanced_labels(3, 2)
    images = GeneratedImages(labels, SHAPE, 3, 4, torch.Generator().manual_seed(2))
    weights, target = matched_weights(network), targets(network)
    set_matching_gradient(network, weights, target, images, torch.arange(6), SOLO)
    made = images(torch.arange(6))
    loss = F.cross_entropy(network(made), labels)
    gradient = torch.autograd.grad(loss, weights, create_graph=True)
    last = images.generator.last.weight
    (expected,) = torch.autograd.grad(row_distance(target, gradient), last)
    assert torch.allclose(last.grad, expected, atol=1e-5)


def test_steps_bring_the_gradients_closer(network):
    images, weights, target = make_images(), matched_weights(network), targets(network)
    optimizer = images.optimizer(0.05, 0.5)

    def distance():
        loss = F.cross_entropy(network(images.all()), images.labels)
        return float(row_distance(target, torch.autograd.grad(loss, weights)))

    before = distance()
    for _ in range(20):
        set_matching_gradient(network, weights, target, images, torch.arange(6), SOLO)
        optimizer.step()
        images.settle()
    assert distance() < before - 0.5
    assert 0 <= images.pixels.min() <= images.pixels.max() <= 1


def test_ranks_train_the_network_that_one_trains(network):
    images = make_images()
    size, meet, brought = 2, threading.Barrier(2), {}
    copies = [convnet(SHAPE, 3, width=4) for _ in range(3)]
    for copy in copies:
        copy.load_state_dict(network.state_dict())

    def work(rank, world=None):
        world = world or Thread(rank, size, meet, brought)
        rng = torch.Generator().manual_seed(4)
        train_on_images(
            copies[rank], images.all(), images.labels, epochs=3, lr=0.1, rng=rng, world=world
        )

    in_threads(work, size)
    work(2, SOLO)
    for name, value in copies[2].state_dict().items():
        assert torch.allclose(copies[0].state_dict()[name], value, atol=1e-5), name
        assert torch.equal(copies[0].state_dict()[name], copies[1].state_dict()[name]), name
    assert not torch.equal(copies[2][1].weight, network[1].weight)


def in_threads(work, size):
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
