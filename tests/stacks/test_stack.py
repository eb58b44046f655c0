"""Stacks of parameters, and clipping member by member."""

import math

import torch
from torch import nn

from dpray.stacks.stack import (
    clip_members,
    repeated,
    set_gradients,
    stacked,
    turned,
    turned_back,
)


def joint_norms(grads):
    return torch.cat([grad.flatten(1) for grad in grads.values()], 1).norm(dim=1)


def some_grads():
    rng = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0.01, 1.0, 50.0, 1e6])
    return {
        "weight": torch.randn(4, 3, 5, generator=rng) * sizes[:, None, None],
        "bias": torch.randn(4, 3, generator=rng) * sizes[:, None],
    }


def test_repeated_members_are_copies_and_stacked_ones_are_not():
    modules = [nn.Linear(3, 2) for _ in range(4)]
    alike, different = repeated(modules[0], 4), stacked(modules)
    for i, module in enumerate(modules):
        assert torch.equal(alike["weight"][i], modules[0].weight)
        assert torch.equal(different["weight"][i], module.weight)
    alike["weight"][0] += 1
    assert torch.equal(alike["weight"][1], modules[0].weight)


def test_a_member_is_clipped_over_all_its_tensors_together():
    grads = some_grads()
    clipped = clip_members(grads, 2.0)
    before, after = joint_norms(grads), joint_norms(clipped)
    assert (after <= 2.0 * (1 + 1e-5)).all()
    assert (after[2:] > 1.99).all()
    assert torch.equal(clipped["weight"][0], grads["weight"][0])  # it was short enough
    direction = grads["bias"][3] / before[3]
    assert torch.allclose(clipped["bias"][3] / after[3], direction, atol=1e-6)


def test_a_member_that_is_not_finite_becomes_zeros_and_hurts_no_other():
    grads = some_grads()
    grads["weight"][1, 0, 0], grads["bias"][2, 0] = math.inf, math.nan
    grads["weight"][3] = 3e38  # finite, but its norm is not
    clipped = clip_members(grads, 1.0)
    honest = clip_members(some_grads(), 1.0)
    for name, grad in clipped.items():
        assert (grad[1:] == 0).all()
        assert torch.equal(grad[0], honest[name][0]) and grad[0].abs().sum() > 0


def test_clipping_in_place_gives_the_same():
    kept, lost = some_grads(), some_grads()
    clipped = clip_members(lost, 0.5, in_place=True)
    for name, grad in clip_members(kept, 0.5).items():
        assert torch.equal(grad, clipped[name])
        assert clipped[name] is lost[name]
        assert torch.equal(kept[name], some_grads()[name])


def test_turning_matrices_changes_their_order_in_memory_alone():
    weights, biases = torch.rand(4, 3, 5), torch.rand(4, 3)
    assert turned(weights).shape == (4, 5, 3) and turned(weights).is_contiguous()
    assert torch.equal(turned_back(turned(weights)), weights)
    assert torch.equal(turned_back(turned(biases)), biases)


def test_a_gradient_laid_out_otherwise_than_its_leaf_gives_the_same_step():
    grad = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    leaves = {name: torch.zeros(4, 3, 5, requires_grad=True) for name in ("fused", "plain")}
    set_gradients(leaves, {"fused": grad})
    leaves["plain"].grad = grad
    torch.optim.Adam([leaves["fused"]], lr=0.1, fused=True).step()
    torch.optim.Adam([leaves["plain"]], lr=0.1, fused=False, foreach=False).step()
    assert torch.allclose(leaves["fused"], leaves["plain"], atol=1e-6)
