"""The images an evaluation is about: a release's draws, a set as it is, or a file by class name."""

import numpy as np
import pytest
import torch

from dpray import models
from dpray.contract import Synthesizer
from dpray.data.records import Images
from dpray.errors import BadInput
from dpray.evaluation.synthetic import MOST_IMAGES, draw, num_images, read_synthetic


def make_decoder(data) -> Synthesizer:
    torch.manual_seed(0)
    arguments = {"shape": list(data.shape), "num_classes": 3, "latent": 3, "hidden": 8}
    module = models.build("conditional-decoder", **arguments)
    return Synthesizer("conditional-decoder", arguments, module, data.class_names, data.shape)


def make_image_set(data, images: Images) -> Synthesizer:
    arguments = {"shape": list(data.shape), "num_images": len(images)}
    module = models.build("image-set", **arguments)
    module.images.copy_(images.pixels)
    module.labels.copy_(images.labels)
    return Synthesizer("image-set", arguments, module, data.class_names, data.shape)


def write_npz(path, data, *, class_names=None, rows=slice(0, 30), **changed):
    records = data.private[rows]
    arrays = {"images": records.pixels[:, 0].numpy(), "labels": records.labels.numpy(), **changed}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names)
    np.savez(path, **arrays)
    return path


def test_as_many_images_as_records_within_reason():
    assert [num_images(n) for n in (60, 5_000, 10**7)] == [2_000, 5_000, MOST_IMAGES]


def test_draws_are_balanced_and_follow_from_the_seed(tiny_data):
    release = make_decoder(tiny_data)
    first, again, other = (draw(release, 7, seed) for seed in (3, 3, 4))
    assert first.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert torch.equal(first.pixels, again.pixels)
    assert not torch.equal(first.pixels, other.pixels)


def test_fewer_images_than_classes_are_refused(tiny_data):
    with pytest.raises(BadInput, match="2 images are fewer than the 3 classes"):
        draw(make_decoder(tiny_data), 2, 0)


def test_a_set_of_images_is_taken_whole_and_once_each(tiny_data):
    own = tiny_data.private[:9]
    found = draw(make_image_set(tiny_data, own), 1000, 5)
    assert torch.equal(found.pixels, own.pixels) and torch.equal(found.labels, own.labels)


def test_a_learnt_image_out_of_range_is_clamped_as_a_drawn_one_is(tiny_data):
    own = tiny_data.private[:9]
    wide = Images(own.pixels * 3 - 1, own.labels, own.ids)
    found = draw(make_image_set(tiny_data, wide), 9, 0).pixels
    assert found.min() == 0 and found.max() == 1


def test_classes_of_a_file_are_matched_by_name(tiny_data, tmp_path):
    own = tiny_data.private[:30]
    turned = write_npz(
        tmp_path / "x.npz", tiny_data, class_names=["c", "a", "b"], labels=(own.labels + 1) % 3
    )
    assert torch.equal(read_synthetic(turned, tiny_data).labels, own.labels)


def test_a_file_may_hold_some_of_the_classes(tiny_data, tmp_path):
    labels = torch.arange(30) % 2
    path = write_npz(tmp_path / "x.npz", tiny_data, class_names=["c", "a"], labels=labels)
    assert read_synthetic(path, tiny_data).labels.tolist() == [2, 0] * 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_names": ["a", "b", "cow"]}, "a class 'cow' that tiny has not.*: a, b, c"),
        ({}, "a class '0' that tiny has not: declare in its array class_names"),
        ({"images": np.zeros((30, 8, 8), np.uint8)}, r"\(1, 8, 8\), those of tiny are"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tiny_data, tmp_path, change, message):
    path = write_npz(tmp_path / "x.npz", tiny_data, **change)
    with pytest.raises(BadInput, match=message):
        read_synthetic(path, tiny_data)


def test_a_file_that_is_not_there_is_called_so(tiny_data, tmp_path):
    with pytest.raises(BadInput, match=r"no file .*gone\.npz"):
        read_synthetic(tmp_path / "gone.npz", tiny_data)
