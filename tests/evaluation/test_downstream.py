"""Train on synthetic, test on real: it measures, chooses nothing on the test set, and repeats."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.evaluation.downstream import downstream
from dpray.evaluation.training import keep_best, logits_of, recipe_for, train_network
from dpray.pool import SerialPool


def bars(count: int, seed: int, noise: float = 0.3) -> Images:
    """Images of 12x12 with a bright bar in one of three places, which is the label."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pixels = torch.rand(count, 1, 12, 12, generator=rng) * noise
    for label in range(3):
        pixels[labels == label, :, 4 * label : 4 * label + 4] += 1 - noise
    return Images(pixels, labels, torch.arange(count))


def scores(synthetic: Images, test: Images, *classifiers: str, epochs=30, seeds=(0,)):
    return downstream(
        synthetic.pixels,
        synthetic.labels,
        test,
        num_classes=3,
        classifiers=classifiers,
        seeds=seeds,
        pool=SerialPool(),
        epochs=epochs,
    )


EPOCHS = {"lr": None, "mlp": 30, "cnn": 30, "convnet": 12, "lenet": 200, "mlp-psg": 60}


@pytest.mark.parametrize(("classifier", "epochs"), EPOCHS.items())
def test_what_is_learnt_from_synthetic_images_holds_on_the_test_images(classifier, epochs):
    [score] = scores(bars(60, seed=0), bars(90, seed=1), classifier, epochs=epochs)
    assert score.raw_correct > 75  # of 90, where chance is 30


@pytest.mark.parametrize("classifier", ["lr", "mlp", "cnn"])
def test_labels_that_have_nothing_to_do_with_the_images_teach_nothing(classifier):
    synthetic = bars(180, seed=0, noise=0.8)
    unrelated = torch.arange(180) // 3 % 3  # each bar has each label equally often
    mixed = dataclasses.replace(synthetic, labels=unrelated)
    [score] = scores(mixed, bars(90, seed=1, noise=0.8), classifier)
    assert 10 <= score.raw_correct <= 50  # of 90, where chance is 30


def test_predictions_do_not_depend_on_the_labels_of_the_test_set():
    """Counts under the three relabellings of the test set add up to its size: same predictions."""
    synthetic, test = bars(2_100, seed=0, noise=0.9), bars(91, seed=1, noise=0.9)
    turned = [dataclasses.replace(test, labels=(test.labels + shift) % 3) for shift in range(3)]
    for classifier in ("lr", "mlp", "cnn"):
        found = [scores(synthetic, t, classifier, epochs=2)[0].raw_correct for t in turned]
        assert sum(found) == 91


def test_the_epoch_that_is_best_on_held_out_images_is_kept_and_patience_ends_training():
    network = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    labels = torch.tensor([0] * 7 + [1] * 3)  # best told by a bias of log(7/3) = 0.85
    done = []

    def epochs():
        for bias in (-1.0, 3.0, 0.8, 2.0, -1.0, 1.5, 0.85):
            nn.init.zeros_(network[1].weight)
            network[1].bias.data = torch.tensor([bias, 0.0])
            done.append(bias)
            yield

    keep_best(network, epochs(), torch.ones(10, 1, 1, 1), labels, patience=3)
    assert network[1].bias[0].item() == pytest.approx(0.8)  # as many correct as 3.0, less loss
    assert done[-1] == 1.5


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    data = bars(40, seed=0)
    logits = [
        logits_of(
            train_network("cnn", data.pixels, data.labels, num_classes=3, seed=seed, epochs=2),
            data.pixels,
        )
        for seed in (5, 5, 6)
    ]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])


def test_the_global_generator_is_left_as_it_was():
    before = torch.get_rng_state()
    scores(bars(20, seed=0), bars(9, seed=1), "lr", "cnn", "lenet", epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_scores_come_for_every_classifier_and_seed_in_order():
    found = scores(bars(30, 0), bars(9, 1), "mlp", "lr", seeds=(4, 2), epochs=1)
    pairs = [(score.classifier, score.seed) for score in found]
    assert pairs == [("mlp", 4), ("mlp", 2), ("lr", 4), ("lr", 2)]


def test_regression_that_does_not_converge_says_so_in_the_note_and_not_on_screen():
    rng = torch.Generator().manual_seed(0)
    hard = Images(
        torch.rand(400, 1, 28, 28, generator=rng),
        torch.randint(3, (400,), generator=rng),
        torch.arange(400),
    )
    hard = dataclasses.replace(hard, pixels=hard.pixels * torch.linspace(0, 1, 28).pow(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [unfinished] = scores(hard, hard, "lr")
        [finished] = scores(bars(30, 0), bars(9, 1), "lr")
    assert unfinished.note == "lr did not converge in 100 iterations"
    assert finished.note == ""


def test_training_is_as_long_as_the_protocol_says():
    assert recipe_for("convnet", 200, None).epochs == 1000
    assert recipe_for("convnet", 200, None).augmented
    assert recipe_for("convnet", 60_000, None).epochs == 10
    assert not recipe_for("convnet", 60_000, None).augmented
    assert recipe_for("mlp", 60_000, None).epochs == 20
    assert recipe_for("mlp", 60_000, None).patience == 4
    assert recipe_for("cnn", 200, None).held_out == 0
    assert recipe_for("cnn", 200, 3).epochs == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classifiers": ["lenett"]}, "did you mean 'lenet'"),
        ({"classifiers": ["lr", "vgg11"]}, "vgg11 needs images of at least 28x28"),
        ({"labels": torch.zeros(6, dtype=torch.int64)}, r"only the classes \[0\]"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 1])}, "labels are 0 to 2"),
        ({"images": torch.rand(6, 1, 8, 8)}, "1x8x8, test images 1x12x12"),
        ({"images": torch.full((6, 1, 12, 12), torch.nan)}, "from 0 to 1"),
        ({"epochs": 0}, "at least 1"),
        ({"seeds": []}, "one seed"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(change, sentence):
    data = bars(6, seed=0)
    arguments = {
        "images": data.pixels,
        "labels": data.labels,
        "test": data,
        "num_classes": 3,
        "classifiers": ["lr", "mlp"],
        "seeds": [0],
        "pool": SerialPool(),
    }
    with pytest.raises(BadInput, match=sentence):
        downstream(**{**arguments, **change})
