"""Public data beside private ones: which words are chosen, and that no record is both."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpray.data.datasets import load
from dpray.data.public import Cut, choose_words, with_public
from dpray.data.records import Dataset
from dpray.data.shards import shard
from dpray.data.tasks import task_data
from dpray.errors import BadInput


def quiet(line: str) -> None:
    pass


def beside(dataset: str, public: str) -> Dataset:
    return with_public(load(dataset, say=quiet), dataset, public, quiet)


@pytest.fixture
def own(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (600, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(600) % 4)
    return str(tmp_path / "own.npz")


@pytest.mark.parametrize(
    ("dataset", "public", "how", "words"),
    [
        ("mnist", None, "classes", ("mnist:0,2,4,6,8@rest", "mnist:1,3,5,7,9@rest")),
        ("mnist@rest", None, "classes", ("mnist:0,2,4,6,8@rest", "mnist:1,3,5,7,9@rest")),
        ("mnist:0,1,2", None, "classes", ("mnist:0,1,2", "mnist:3,4,5,6,7,8,9")),
        ("mnist:9,8@rest", None, "classes", ("mnist:9,8@rest", "mnist:0,1,2,3,4,5,6,7@rest")),
        ("mnist", "1, 3,5", "classes", ("mnist:0,2,4,6,7,8,9@rest", "mnist:1,3,5@rest")),
        ("mnist:0,1,2", "1", "classes", ("mnist:0,2@rest", "mnist:1@rest")),
        ("mnist", "fashion-mnist", "classes", ("mnist", "fashion-mnist")),
        ("mnist:0@rest", "mnist:1,3@rest", "classes", ("mnist:0@rest", "mnist:1,3@rest")),
        ("mnist", None, "labelling", ("mnist@rest", "mnist@labelling")),
        ("mnist:0,1@rest", None, "labelling", ("mnist:0,1@rest", "mnist:0,1@labelling")),
        ("mnist", "digits:0, 1", "labelling", ("mnist", "digits:0,1")),
    ],
)
def test_the_words_of_a_run_are_written_out_and_stay_as_they_are(
    dataset: str, public: str | None, how: Cut, words: tuple[str, str]
) -> None:
    assert choose_words(dataset, public, how) == words
    assert choose_words(*words, how) == words


@pytest.mark.parametrize(
    ("dataset", "public", "how", "message"),
    [
        ("celeba", None, "classes", "celeba has 2 classes, and fewer than 4.*--public"),
        ("mnist:0,1,2,3,4,5,6,7,8,9", None, "classes", "leaves none to be public.*--public"),
        ("mnist:1,3", "1,3,5", "classes", "--public 1,3,5 leaves no class of mnist:1,3 private"),
        ("mnist", "1,12", "classes", "mnist has no class 12; choose from: 0"),
        ("mnist", "1,1", "classes", "named twice"),
        ("mnist", "mnist@odd", "classes", "choose from: labelling, rest"),
        ("mnist@labelling", None, "labelling", "public by default; write @rest"),
    ],
)
def test_words_that_cannot_be_chosen_are_refused_with_the_choices(
    dataset: str, public: str | None, how: Cut, message: str
) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        choose_words(dataset, public, how)
    assert "\n" not in str(refusal.value)


def test_of_ones_own_data_nothing_is_public_that_was_not_named(own: str) -> None:
    third = f"--dataset {own}@rest --public {own}@labelling"
    for word, how, message in (
        (own, "classes", "--public 1,3"),
        (own, "labelling", third),
        (f"{own}@rest", "labelling", third),
    ):
        with pytest.raises(BadInput, match=f"is your own data.*{message}"):
            choose_words(word, None, how)  # type: ignore[arg-type]
    # A class list declares those classes public, and no third of the private ones beside them.
    assert choose_words(own, "1,3", "classes") == (f"{own}:0,2", f"{own}:1,3")
    assert choose_words(f"{own}@rest", "1,3", "classes") == (f"{own}:0,2@rest", f"{own}:1,3@rest")
    public = beside(f"{own}:0,2@rest", f"{own}:1,3@rest").train.public
    assert public is not None and public.labelling is None
    named = beside(f"{own}@rest", f"{own}@labelling").train.public
    assert named is not None and named.labelling is named.images


def test_public_classes_and_labelling_records_share_no_record_with_the_private_ones() -> None:
    dataset = beside("digits:0,2,4,6,8@rest", "digits:1,3,5,7,9@rest")
    private, public = dataset.train.private, dataset.train.public
    assert public is not None and public.labelling is not None
    assert public.class_names == ("1", "3", "5", "7", "9")
    assert public.labelling.labels.unique().tolist() == [0, 1, 2, 3, 4]
    ids = torch.cat([private.ids, public.images.ids, public.labelling.ids])
    assert len(ids.unique()) == len(ids)
    whole = load("digits").train.private
    even = whole.ids[(whole.labels % 2 == 0)]
    assert torch.equal(torch.cat([private.ids, public.labelling.ids]).sort().values, even)


def test_labels_of_labelling_records_are_places_in_the_private_class_list() -> None:
    public = beside("digits:8,2@rest", "digits:1@rest").train.public
    assert public is not None and public.labelling is not None
    whole = load("digits").train.private
    true = {int(i): int(label) for i, label in zip(whole.ids, whole.labels, strict=True)}
    assert [(8, 2)[place] for place in public.labelling.labels] == [
        true[int(i)] for i in public.labelling.ids
    ]


def test_without_a_part_no_record_of_the_private_classes_is_declared_public() -> None:
    public = beside("digits:0,2", "digits:1,3").train.public
    assert public is not None and public.labelling is None
    assert list(public.facts) == ["public data"]


def test_the_labelling_part_can_be_the_public_data_itself() -> None:
    public = beside("digits@rest", "digits@labelling").train.public
    assert public is not None and public.labelling is public.images


@pytest.mark.parametrize(
    ("dataset", "public"),
    [
        ("digits", "digits"),
        ("digits:0,2", "digits:1,2"),
        ("digits@rest", "digits:1"),
        ("digits", "digits@labelling"),
    ],
)
def test_public_data_that_hold_a_private_record_are_refused(dataset: str, public: str) -> None:
    with pytest.raises(BadInput, match=f"{public} and {dataset} share records.*@labelling"):
        beside(dataset, public)


def test_an_image_that_two_datasets_share_is_not_public_and_private_at_once(
    own: str, tmp_path: Path
) -> None:
    copy = shutil.copy(own, tmp_path / "copy.npz")
    kept = np.load(own)
    np.savez(tmp_path / "few.npz", images=kept["images"][:90], labels=kept["labels"][:90])
    for public in (copy, tmp_path / "few.npz"):
        with pytest.raises(BadInput, match="share images, and what is public cannot be private"):
            beside(own, str(public))
    assert beside(f"{own}:0,2", f"{copy}:1,3").train.public is not None  # no image is in both


def test_another_dataset_is_public_and_the_labelling_part_is_still_the_private_ones(
    own: str,
) -> None:
    train = beside("digits:0,2@rest", f"{own}:1,3").train
    assert train.public is not None and train.public.labelling is not None
    assert train.public.name == "own:1,3"
    expected = load("digits:0,2@labelling").train.private
    assert torch.equal(train.public.labelling.ids, expected.ids)


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", images=np.zeros((99, 9, 9), np.uint8), labels=np.arange(99) % 3)
    with pytest.raises(BadInput, match=r"shape \(1, 9, 9\).*digits \(1, 28, 28\).*same shape"):
        beside("digits", str(tmp_path / "s.npz"))


def test_the_facts_for_the_card_name_what_is_declared_public() -> None:
    train = beside("digits:0,2@rest", "digits:1,3@rest").train
    facts, public = train.public_facts, train.public
    assert public is not None and public.labelling is not None
    assert facts["public data"] == f"digits:1,3@rest, {len(public.images)} records"
    assert str(facts["labelling records"]).startswith(f"{len(public.labelling)} records that show")
    assert "declared public" in str(facts["labelling records"])
    assert list(replace(train, public=None).public_facts) == list(facts)[:3]


def test_every_worker_has_the_public_data_and_a_task_has_none() -> None:
    train = beside("digits:0,2@rest", "digits:1,3@rest").train
    assert shard(train, 1, 2, block_size=50).public is train.public
    assert task_data(train, [1], own_classes=True).public is None
