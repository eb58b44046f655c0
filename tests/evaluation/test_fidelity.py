"""Fidelity: real images score as real, noise does not, and a private reference stays private."""

import stat

import pytest
import torch

from dpray.data.datasets import load
from dpray.data.folders import data_cache, home
from dpray.data.records import Dataset, Images
from dpray.errors import BadInput
from dpray.evaluation import inception, judge
from dpray.evaluation.fidelity import fidelity, spread
from dpray.evaluation.judge import judge_for, train_judge
from dpray.evaluation.metrics import Source


def quiet(line):
    pass


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def judges_folder(tmp_path_factory):
    """One cache for the file: the judge of the digits is trained once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache_of_this_file(judges_folder, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(judges_folder))


@pytest.fixture
def tiny(tiny_data) -> Dataset:
    """A user's own data: the hold-out is as private as the rest."""
    return Dataset(tiny_data, tiny_data.private[:20], test_is_public=False)


def scores(images, dataset, **options):
    result = fidelity(images, dataset, inception=False, say=quiet, **options)
    return {metric.name: metric.value for metric in result.metrics}


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_real_images_are_far_closer_than_noise(digits):
    real = digits.train.private.pixels[:300]
    noise = torch.rand(real.shape, generator=torch.Generator().manual_seed(0))
    near, far = scores(real, digits), scores(noise, digits)
    assert near["domain_fid"] < 0.1 * far["domain_fid"]
    assert near["domain_is"] > 7 and far["domain_is"] < 4


def test_the_judge_knows_records_it_did_not_learn_from(digits):
    trained, _, _ = judge_for(digits, "test", quiet)
    fresh = digits.train.private[:400]
    correct = trained.probabilities(fresh.pixels).argmax(1) == fresh.labels
    assert correct.double().mean() > 0.9
    assert trained.features(fresh.pixels[:3]).shape == (3, 128)


def test_learning_and_comparing_share_no_record(digits):
    for reference in ("test", "private"):
        training, held_back = judge._parts(digits, reference)
        assert not set(training.ids.tolist()) & set(held_back.ids.tolist())
        assert 0.3 < len(held_back) / (len(training) + len(held_back)) < 0.6


def test_a_kept_judge_gives_the_same_scores_without_training(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))
    public = Dataset(tiny.train, tiny.train.private[:40], test_is_public=True)
    first = scores(tiny.train.private.pixels, public)
    monkeypatch.setattr(judge, "train_judge", None)
    assert scores(tiny.train.private.pixels, public) == first


def test_a_test_set_with_one_other_pixel_gets_a_judge_of_its_own(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))
    test = tiny.train.private[:40]
    judge_for(Dataset(tiny.train, test, test_is_public=True), "test", quiet)
    pixels = test.pixels.clone()
    pixels[0, 0, 0, 0] += 0.1
    other = Images(pixels, test.labels, test.ids)
    judge_for(Dataset(tiny.train, other, test_is_public=True), "test", quiet)
    assert len(files_below(data_cache() / "judges")) == 2


def test_a_damaged_kept_judge_is_made_anew(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("DPRAY_CACHE", str(tmp_path / "cache"))
    public = Dataset(tiny.train, tiny.train.private[:40], test_is_public=True)
    first = scores(tiny.train.private.pixels, public)
    (kept,) = files_below(data_cache() / "judges")
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert scores(tiny.train.private.pixels, public) == first
    assert kept.read_bytes() == whole


def test_training_leaves_the_global_generator_alone(tiny):
    before = torch.random.get_rng_state()
    train_judge(tiny.train.private[:10], 3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_images_too_small_to_pool_are_judged_too():
    rng = torch.Generator().manual_seed(0)
    images = Images(torch.rand(20, 1, 2, 2, generator=rng), torch.arange(20) % 2, torch.arange(20))
    assert train_judge(images, 2).features(images.pixels).shape == (20, 128)


def test_a_private_hold_out_is_no_reference(tiny):
    with pytest.raises(BadInput, match=r"private, so .* must not be published"):
        scores(tiny.train.private.pixels, tiny)
    assert not (home() / "private").exists()


def test_a_private_reference_marks_every_metric_and_stays_on_the_private_side(tiny):
    public_before = files_below(data_cache())
    images = tiny.train.private.pixels
    result = fidelity(images, tiny, reference="private", inception=False, say=quiet)
    assert {metric.source for metric in result.metrics} == {Source.PRIVATE}
    assert files_below(data_cache()) == public_before
    (kept,) = files_below(home())
    assert kept.is_relative_to(home() / "private" / "judges")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for folder in (home() / "private", kept.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_public_reference_marks_every_metric_as_public(digits):
    result = fidelity(digits.test.pixels[:50], digits, inception=False, say=quiet)
    assert {metric.source for metric in result.metrics} == {Source.PUBLIC_TEST}
    assert not (home() / "private").exists()


def test_without_inception_weights_one_note_says_so_and_the_rest_is_there(tiny, monkeypatch):
    monkeypatch.setattr(inception, "WEIGHTS_URL", "file:///nowhere/weights.pth")
    public = Dataset(tiny.train, tiny.train.private[:40], test_is_public=True)
    result = fidelity(tiny.train.private.pixels, public, inception=True, say=quiet)
    assert [metric.name for metric in result.metrics] == [
        "domain_fid",
        "domain_is",
        "domain_is_std",
    ]
    (note,) = result.notes
    assert note.startswith("FID and Inception Score left out: ")


class FewFeatures:
    """In the place of the Inception network, whose weights are too large for a test."""

    device = "cpu"

    def __init__(self, weights):
        pass

    def features(self, images):
        return images.flatten(1)[:, ::32]

    def probabilities(self, features):
        return features.softmax(1)


def test_with_weights_fid_is_measured_against_the_test_images(tiny, tmp_path, monkeypatch):
    (tmp_path / "weights").write_bytes(b"")
    monkeypatch.setattr(inception, "WEIGHTS_SHA256_START", "")
    monkeypatch.setattr("dpray.evaluation.fidelity.Inception", FewFeatures)
    public = Dataset(tiny.train, tiny.train.private[:40], test_is_public=True)
    found = fidelity(
        public.test.pixels,
        public,
        inception=True,
        inception_weights=tmp_path / "weights",
        say=quiet,
    )
    values = {metric.name: metric.value for metric in found.metrics}
    assert values["fid"] == pytest.approx(0, abs=1e-6)
    assert values["domain_fid"] > 1e-3  # against the other half, so not quite the same images
    assert {"inception_score", "inception_score_std"} <= set(values) and found.notes == ()


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(1, 1, 16, 16), "at least 2 images .* there is 1"),
        (torch.zeros(5, 3, 16, 16), "cannot be compared"),
        (torch.full((5, 1, 16, 16), float("nan")), "not numbers"),
    ],
)
def test_images_that_cannot_be_scored_are_refused(tiny, images, words):
    with pytest.raises(BadInput, match=words):
        scores(images, tiny, reference="private")


@pytest.mark.parametrize("order", ["sorted", "in turn"])
def test_a_choice_of_images_keeps_the_shares_of_the_classes(order):
    labels = torch.arange(20_000) % 10
    labels = labels.sort().values if order == "sorted" else labels
    rows = spread(20_000, 1_000)
    assert len(rows.unique()) == 1_000 and torch.equal(rows, spread(20_000, 1_000))
    assert labels[rows].bincount(minlength=10).min() > 60
