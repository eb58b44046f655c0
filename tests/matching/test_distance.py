"""Gradients are compared row by row and by direction; some parameters are not compared at all."""

import pytest
import torch

from dpray.matching.distance import matched_weights, row_distance
from dpray.models.architectures import convnet


def test_rows_that_point_the_same_way_are_at_distance_zero_whatever_their_length():
    gradient = [torch.randn(4, 3, 3, 3), torch.randn(10, 6)]
    longer = [5.0 * piece for piece in gradient]
    assert float(row_distance(longer, gradient)) == pytest.approx(0, abs=1e-4)


def test_opposite_rows_count_two_and_orthogonal_ones_one():
    target = [torch.tensor([[1.0, 0.0], [1.0, 0.0]])]
    gradient = [torch.tensor([[-3.0, 0.0], [0.0, 7.0]])]
    assert float(row_distance(target, gradient)) == pytest.approx(3.0, abs=1e-4)


def test_a_kernel_is_compared_by_output_channel():
    target, gradient = torch.randn(5, 2, 3, 3), torch.randn(5, 2, 3, 3)
    cosines = torch.nn.functional.cosine_similarity(target.flatten(1), gradient.flatten(1))
    assert float(row_distance([target], [gradient])) == pytest.approx(float((1 - cosines).sum()))


def test_a_row_of_zeros_is_at_distance_one_and_has_a_gradient():
    gradient = torch.zeros(2, 3, requires_grad=True)
    distance = row_distance([torch.ones(2, 3)], [gradient])
    distance.backward()
    assert distance.item() == pytest.approx(2.0)
    assert gradient.grad.isfinite().all()


def test_the_published_network_has_394_rows_and_no_bias_among_them():
    network = convnet((1, 28, 28), 10)
    weights = matched_weights(network)
    assert sum(len(weight) for weight in weights) == 394
    assert all(weight.dim() >= 2 for weight in weights)
    assert len(weights) < len(list(network.parameters()))
