"""The picture of a run: drawn for every kind of release and every shape of ledger."""

from collections.abc import Callable

import matplotlib
import pytest
import torch
from PIL import Image

from dpray import models
from dpray.contract import Synthesizer
from dpray.evaluation.metrics import Metric, Source
from dpray.execute import Result
from dpray.privacy.accounting import Budget
from dpray.privacy.card import make_card
from dpray.privacy.ledger import HOLD_OUT, TRAINING, Ledger
from dpray.privacy.queries import GaussianSum, PoissonGradients
from dpray.reporting.picture import _draw_budget, _title, draw_run
from dpray.runs import make_folder
from dpray.spec import RunSpec

MEANS = GaussianSum(name="class means", noise_multiplier=5.0)
MOMENTS = GaussianSum(name="second moments", noise_multiplier=9.0)
CHECK = GaussianSum(name="hold-out accuracy", noise_multiplier=4.0)
STEPS = PoissonGradients(
    sample_rate=0.1, steps=4, clip_norm=1.0, noise_multiplier=2.0, expected_batch_size=10
)


@pytest.fixture
def make_result() -> Callable[..., Result]:
    def make(*paid: tuple, classes: int = 3, **facts: float) -> Result:
        spec = RunSpec(method="dp-sgd", dataset="no such data", noise_multiplier=4.0, seed=5)
        folder = make_folder("run-1", spec)
        ledger = Ledger.create(
            folder.ledger, Budget(100, 1e-5), subject={}, adjacency=spec.adjacency
        )
        for query, part in paid:
            ledger.pay(query, part=part)
        card = make_card(
            run_id="run-1",
            method="dp-sgd",
            dataset="tiny",
            ledger=ledger,
            facts=facts,
            public={},
            num_records=60_000,
        )
        metrics = (Metric("test_accuracy", 0.8123, Source.PUBLIC_TEST),)
        return Result("run-1", spec, synthesizer(classes), metrics, card, folder)

    return make


def synthesizer(classes: int) -> Synthesizer:
    torch.manual_seed(0)
    arguments = {"shape": [1, 16, 16], "num_classes": classes, "latent": 4, "hidden": 8}
    module = models.build("conditional-decoder", **arguments)
    names = tuple(f"kind {number}" for number in range(classes))
    return Synthesizer("conditional-decoder", arguments, module, names, (1, 16, 16))


@pytest.fixture
def axis():
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    yield axis
    plt.close(figure)


def test_a_synthesizer_gets_a_picture_and_samples_without_its_dataset(make_result):
    result = make_result((MEANS, TRAINING), classes=12)
    draw_run(result)
    with Image.open(result.folder.picture) as picture, Image.open(result.folder.samples) as samples:
        assert picture.width > 1000 and len(picture.convert("L").getcolors()) > 50
        assert samples.height == 12 * 66 + 2 and samples.width > 10 * 66


def test_samples_come_again_with_the_seed_of_the_run(make_result):
    result = make_result((MEANS, TRAINING))
    draw_run(result)
    first = result.folder.samples.read_bytes()
    draw_run(result)
    assert result.folder.samples.read_bytes() == first


def test_the_title_says_how_a_synthesizer_was_measured(make_result):
    title = _title(make_result((MEANS, TRAINING)))
    assert "81.23 % (train on synthetic, test on real) at epsilon 0.7" in title


def test_several_charges_are_a_bar_each_as_long_as_its_own_epsilon(make_result, axis):
    result = make_result((MEANS, TRAINING), (MOMENTS, TRAINING), (CHECK, HOLD_OUT))
    _draw_budget(axis, result)
    widths = [bar.get_width() for bar in axis.patches]
    assert widths == pytest.approx([0.726, 0.382, 0.926], abs=2e-3)
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names[0] == "class means\ntraining records" and "hold-out records" in names[2]


def test_no_charge_alone_is_drawn_longer_than_all_together(make_result, axis):
    result = make_result((STEPS, TRAINING), (CHECK, HOLD_OUT), steps=4)
    _draw_budget(axis, result)
    assert all(bar.get_width() <= result.card.epsilon for bar in axis.patches)


@pytest.mark.parametrize("facts", [{}, {"steps": 1}, {"steps": 1, "noise_multiplier": 5.0}])
def test_one_release_is_one_bar(make_result, axis, facts):
    result = make_result((MEANS, TRAINING), **facts)
    _draw_budget(axis, result)
    (bar,) = axis.patches
    assert bar.get_width() == pytest.approx(result.card.epsilon)


def test_a_training_run_is_a_curve_over_its_steps(make_result, axis):
    result = make_result((STEPS, TRAINING), steps=4, noise_multiplier=2.0, sample_rate=0.1)
    _draw_budget(axis, result)
    curve = axis.lines[0].get_ydata()
    assert not axis.patches and axis.get_xlim() == (0, 4)
    assert curve[-1] == pytest.approx(result.card.epsilon, rel=0.02) and curve[0] < 0.8 * curve[-1]


def test_more_charges_than_fit_are_counted(make_result, axis, monkeypatch):
    monkeypatch.setattr("dpray.reporting.picture._MOST_ROWS", 2)
    _draw_budget(axis, make_result((MEANS, TRAINING), (MOMENTS, TRAINING), (CHECK, HOLD_OUT)))
    assert len(axis.patches) == 2 and "1 more not drawn" in axis.get_xlabel()
