"""The one table of published figures, and what their configurations truly cost."""

from __future__ import annotations

import math

import pytest

from dpray import methods
from dpray.reporting.published import (
    PRIVACY_PROJECT,
    PRIVATE_SET,
    PUBLISHED,
    published_of,
    published_on,
    to_draw,
)
from dpray.reporting.true_costs import true_cost, true_cost_of


def test_no_figure_is_in_the_table_twice():
    keys = [(f.source, f.dataset, f.method, f.epsilon, f.classifier) for f in PUBLISHED]
    assert len(set(keys)) == len(keys)
    assert all(0 < figure.accuracy < 1 for figure in PUBLISHED)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("DP-GAN (Bie et al.)", "dp-gan"),
        ("DP-Sinkhorn, m=3", "dp-sinkhorn"),
        ("PSG, generator prior, 10 a class", "psg"),
        ("ScatterNet", "dp-sgd"),
        ("VAE images, noise 0.1", "dp-vae"),
        ("CNN", "sgd"),
    ],
)
def test_a_figure_is_found_by_the_name_that_its_method_has_here(printed, name):
    assert name in methods.table()
    assert printed in {figure.method for figure in published_of("mnist", name)}


def test_figures_of_one_epsilon_leave_out_the_others():
    (figure,) = [f for f in published_of("mnist", "dp-merf", 1.0) if f.source is PRIVATE_SET]
    assert figure.accuracy == pytest.approx(0.727)  # table of Private Set Generation
    assert published_of("digits", "dp-merf") == []


def test_a_plot_has_one_figure_a_method_and_epsilon_and_no_ceiling():
    for dataset in ("mnist", "fashion-mnist"):
        drawn = [(figure.method, figure.epsilon) for figure in to_draw(dataset)]
        assert len(set(drawn)) == len(drawn)
        assert all(epsilon != math.inf for _, epsilon in drawn)
    assert math.inf in {figure.epsilon for figure in published_on("mnist")}


def test_an_epsilon_that_does_not_hold_is_known_not_to():
    cost = true_cost("gs-wgan", 10)
    assert cost is not None and not cost.holds and "330" in cost.words
    sound = true_cost("dp-sinkhorn", 1)
    assert sound is not None and sound.holds
    assert true_cost("dpdm", 10) is None  # nobody recomputed it


def test_figures_without_an_epsilon_have_a_true_cost_by_their_method():
    found = {f.known_as: true_cost_of(f) for f in PUBLISHED if f.source is PRIVACY_PROJECT}
    assert "above 1,000" in found["dp-sgd"].words and "unbounded" in found["dp-vae"].words
    assert found["sgd"] is None
