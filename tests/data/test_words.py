"""Dataset words: classes and parts behind a name or a path, and what they leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpray.data.datasets import load
from dpray.data.splits import keyed_fraction
from dpray.data.words import DatasetWord
from dpray.errors import BadInput
from dpray.spec import dataset_word


def saved(path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    images = rng.integers(0, 256, (240, 8, 8), dtype=np.uint8)
    with open(path, "wb") as file:  # by name, numpy would add .npz
        np.savez(file, images=images, labels=labels, class_names=["cat", "dog", "eel"])
    return path


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("mnist", DatasetWord("mnist")),
        ("mnist:8,0,2", DatasetWord("mnist", (8, 0, 2))),
        ("mnist@labelling", DatasetWord("mnist", None, "labelling")),
        ("mnist:0,2@rest", DatasetWord("mnist", (0, 2), "rest")),
        ("some/own.npz:1@rest", DatasetWord("some/own.npz", (1,), "rest")),
        ("me@work/own.npz", DatasetWord("me@work/own.npz")),
        ("a:b/own.npz", DatasetWord("a:b/own.npz")),
        ("me@work.npz", DatasetWord("me@work.npz")),
    ],
)
def test_a_word_goes_to_its_pieces_and_back(text: str, word: DatasetWord) -> None:
    assert DatasetWord.parse(text) == word
    assert str(word) == text


def test_spaces_and_zeros_in_front_are_left_out_of_the_canonical_text() -> None:
    assert str(DatasetWord.parse("mnist:04, 2@rest")) == "mnist:4,2@rest"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digits:", "class '' is not a number"),
        ("digits:0,,1", "class '' is not a number"),
        ("digits:-1", "class '-1' is not a number"),
        ("digits:one", "class 'one' is not a number.*as in mnist:0,2,4"),
        ("digits:" + "9" * 5000, "is not a number"),
        ("digits:0,1,00", "class 0 is named twice"),
        ("digits:3,12", r"digits has no class 12; choose from: 0 \(0\), 1 \(1\)"),
        ("digits@labeling", "did you mean 'labelling'.*choose from: labelling, rest"),
        ("digits@", "no part of a dataset ''"),
        (":0,1", "names no dataset"),
        ("digitz:0,1@rest", "no dataset 'digitz' .*did you mean 'digits'"),
    ],
)
def test_a_word_that_means_nothing_is_one_line_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        load(text)
    assert "\n" not in str(refusal.value)


def test_classes_keep_their_records_under_new_numbers_in_training_and_test() -> None:
    whole, some = load("digits"), load("digits:7,3")
    assert some.train.class_names == ("7", "3")
    for images, kept in ((whole.train.private, some.train.private), (whole.test, some.test)):
        rows = (images.labels == 7) | (images.labels == 3)
        assert torch.equal(kept.ids, images.ids[rows])
        assert torch.equal(kept.pixels, images.pixels[rows])
        assert torch.equal(kept.labels, (images.labels[rows] == 3).long())
    assert some.train.num_records == len(some.train.private)
    assert some.test_is_public


def test_the_parts_are_a_fixed_third_and_the_rest_and_leave_the_test_set_alone() -> None:
    whole, third, rest = load("digits"), load("digits@labelling"), load("digits@rest")
    ids = whole.train.private.ids
    in_third = keyed_fraction(ids, "dpray/labelling") < 1 / 3
    assert torch.equal(third.train.private.ids, ids[in_third])
    assert torch.equal(rest.train.private.ids, ids[~in_third])
    assert 0.3 < len(third.train.private) / len(ids) < 0.37
    assert third.train.class_names == whole.train.class_names
    assert torch.equal(third.test.ids, whole.test.ids)


def test_a_record_keeps_its_part_whatever_the_classes_are() -> None:
    both, part = load("digits:2,4@labelling").train, load("digits@labelling").train
    of_classes = (part.private.labels == 2) | (part.private.labels == 4)
    assert torch.equal(both.private.ids, part.private.ids[of_classes])


def test_the_fingerprint_and_the_name_tell_selections_apart() -> None:
    words = ["digits", "digits:0,1", "digits:1,0", "digits@rest", "digits:0,1@rest"]
    found = [load(word).train for word in words]
    assert [data.name for data in found] == words
    assert len({data.fingerprint for data in found}) == len(words)
    assert load("digits:0, 1").train.fingerprint == found[1].fingerprint


def test_a_private_hold_out_is_restricted_by_class_and_stays_private(tmp_path: Path) -> None:
    path = saved(tmp_path / "own.npz")
    whole, some = load(str(path)), load(f"{path}:2,0@rest")
    assert not some.test_is_public
    assert some.notes == whole.notes
    assert torch.equal(some.test.ids, whole.test.ids[whole.test.labels != 1])
    assert not torch.isin(some.train.private.ids, whole.test.ids).any()
    assert (some.train.name, some.train.class_names) == ("own:2,0@rest", ("eel", "cat"))


def test_classes_without_records_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 2
    labels[0] = 2
    np.savez(path, images=images, labels=labels, test_images=images[1:], test_labels=labels[1:])
    with pytest.raises(BadInput, match="own:2 holds no test records"):
        load(f"{path}:2")
    # Its only record is in one of the parts, and the other one is empty.
    empty = "rest" if keyed_fraction(torch.tensor([0]), "dpray/labelling") < 1 / 3 else "labelling"
    with pytest.raises(BadInput, match=f"own:2@{empty} holds no training records"):
        load(f"{path}:2@{empty}")


def test_a_path_that_exists_under_the_whole_text_is_that_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a:1", "b@rest"):
        (tmp_path / name).mkdir()
    assert DatasetWord.parse("a:1") == DatasetWord("a:1")
    assert DatasetWord.parse("b@rest") == DatasetWord("b@rest")
    assert DatasetWord.parse("a:1@rest") == DatasetWord("a:1", None, "rest")
    assert DatasetWord.parse("a:1:0,2@rest") == DatasetWord("a:1", (0, 2), "rest")


def test_a_path_becomes_absolute_and_keeps_its_classes_and_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "own.npz")
    assert dataset_word("own.npz") == str(tmp_path / "own.npz")
    assert dataset_word("own.npz:0,1@rest") == f"{tmp_path / 'own.npz'}:0,1@rest"
    assert dataset_word("gone.npz:0,1@rest") == "gone.npz:0,1@rest"
    assert dataset_word("mnist:0,1") == "mnist:0,1"


def test_a_built_in_name_is_not_taken_for_a_folder_that_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert dataset_word("digits") == "digits"
    assert dataset_word("digits:0,1@rest") == "digits:0,1@rest"
    assert dataset_word("./digits:0,1") == f"{tmp_path / 'digits'}:0,1"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("mnist@tuning", DatasetWord("mnist", tuning=True)),
        ("mnist:0,2@rest@tuning", DatasetWord("mnist", (0, 2), "rest", tuning=True)),
        ("some/own.npz:1@tuning", DatasetWord("some/own.npz", (1,), tuning=True)),
    ],
)
def test_a_word_with_tuning_goes_to_its_pieces_and_back(text: str, word: DatasetWord) -> None:
    assert DatasetWord.parse(text) == word
    assert str(word) == text


def test_tuning_twice_is_one_line() -> None:
    with pytest.raises(BadInput, match="@tuning stands twice behind a dataset"):
        DatasetWord.parse("mnist@tuning@tuning")


def test_tuning_holds_out_a_fixed_private_tenth_and_keeps_the_test_set_out_of_reach() -> None:
    whole, tuning = load("digits"), load("digits@tuning")
    ids = whole.train.private.ids
    held_out = keyed_fraction(ids, "dpray/validation") < 0.1
    assert torch.equal(tuning.train.private.ids, ids[~held_out])
    assert torch.equal(tuning.test.ids, ids[held_out])
    assert 0.07 < len(tuning.test) / len(ids) < 0.13
    assert whole.test_is_public and not tuning.test_is_public
    for images in (tuning.train.private, tuning.test):
        assert not torch.isin(images.ids, whole.test.ids).any()
    assert tuning.train.num_records == len(tuning.train.private)
    assert tuning.train.fingerprint != whole.train.fingerprint
    assert "the test set is out of reach" in tuning.notes[-1]


def test_tuning_keeps_to_the_classes_and_the_part_of_its_word() -> None:
    whole, tuning = load("digits:7,3@rest").train, load("digits:7,3@rest@tuning")
    both = torch.cat([tuning.train.private.ids, tuning.test.ids])
    assert torch.equal(both.sort().values, whole.private.ids.sort().values)
    labels = dict(zip(whole.private.ids.tolist(), whole.private.labels.tolist(), strict=True))
    assert tuning.test.labels.tolist() == [labels[i] for i in tuning.test.ids.tolist()]
    assert tuning.train.class_names == ("7", "3")


def test_tuning_of_data_with_a_private_hold_out_leaves_that_hold_out_alone(tmp_path: Path) -> None:
    path = saved(tmp_path / "own.npz")
    whole, tuning = load(str(path)), load(f"{path}@tuning")
    both = torch.cat([tuning.train.private.ids, tuning.test.ids])
    assert torch.equal(both.sort().values, whole.train.private.ids.sort().values)
    assert not torch.isin(both, whole.test.ids).any()
    assert len(tuning.test) > 0 and not tuning.test_is_public


def test_tuning_of_too_few_records_is_refused(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 8, 8), np.uint8), np.arange(2)
    ids = torch.arange(100)
    ids = ids[keyed_fraction(ids, "dpray/validation") >= 0.1][:2].numpy()
    np.savez(
        tmp_path / "own.npz",
        images=images,
        labels=labels,
        ids=ids,
        test_images=images,
        test_labels=labels,
    )
    with pytest.raises(BadInput, match="own@tuning holds no validation records"):
        load(f"{tmp_path / 'own.npz'}@tuning")


def test_selected_classes_keep_the_numbers_they_have_in_the_whole() -> None:
    """Parts of a ledger are named by them, and ledgers of other selections may be added up."""
    assert load("digits:8,2").train.numbers_of([0, 1]) == (8, 2)
    assert load("digits").train.numbers_of([0, 1]) == (0, 1)
    assert load("digits@rest").train.numbers_of([3]) == (3,)
