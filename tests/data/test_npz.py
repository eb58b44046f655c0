"""The user's own .npz: what is taken, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpray.data.datasets import load
from dpray.errors import BadData

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (60, 8, 9), dtype=np.uint8)
LABELS = np.arange(60) % 3


ROWS = np.arange(60)


def saved(folder: Path, **changes: Any) -> str:
    """The path of a good file with some arrays changed; None takes one away."""
    arrays = {"images": IMAGES, "labels": LABELS, **changes}
    path = folder / "mine.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def test_records_are_kept_or_held_out_and_never_lost(tmp_path: Path) -> None:
    dataset = load(saved(tmp_path, ids=ROWS))
    ids = torch.cat([dataset.train.private.ids, dataset.test.ids])
    assert ids.sort().values.tolist() == list(range(60))
    assert not dataset.test_is_public
    assert dataset.train.num_records == len(dataset.train.private) == 60 - len(dataset.test)
    row = dataset.train.private.ids[0]
    assert torch.equal(
        dataset.train.private.pixels[0, 0], torch.tensor(IMAGES[row] / 255.0).float()
    )


def test_an_undeclared_class_list_is_noted_as_public(tmp_path: Path) -> None:
    dataset = load(saved(tmp_path))
    assert dataset.train.class_names == ("0", "1", "2")
    assert "class list taken from the labels: treated as public" in dataset.notes


def test_declared_class_names_need_no_note(tmp_path: Path) -> None:
    dataset = load(saved(tmp_path, class_names=np.array(["a", "b", "c"])))
    assert dataset.train.class_names == ("a", "b", "c")
    assert not any("class list" in note for note in dataset.notes)


def test_a_declared_test_part_is_public_and_noted(tmp_path: Path) -> None:
    dataset = load(saved(tmp_path, test_images=IMAGES[:5], test_labels=LABELS[:5]))
    assert dataset.test_is_public
    assert "test_images were declared as a test set: treated as public" in dataset.notes
    assert (len(dataset.train.private), len(dataset.test)) == (60, 5)
    assert not set(dataset.test.ids.tolist()) & set(dataset.train.private.ids.tolist())


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (IMAGES, (1, 8, 9)),
        (IMAGES[..., None], (1, 8, 9)),
        (IMAGES[:, None], (1, 8, 9)),
        (np.stack([IMAGES] * 3, -1), (3, 8, 9)),
        (np.stack([IMAGES] * 3, 1), (3, 8, 9)),
        (IMAGES / 255.0, (1, 8, 9)),
        ((IMAGES / 255.0).astype(np.float16), (1, 8, 9)),
    ],
)
def test_all_usual_layouts_become_channels_first_floats(
    tmp_path: Path, images: np.ndarray, shape: tuple[int, int, int]
) -> None:
    data = load(saved(tmp_path, images=images, ids=ROWS)).train
    assert data.shape == shape
    assert data.private.pixels.dtype == torch.float32
    expected = torch.tensor(IMAGES[data.private.ids] / 255.0).float()
    assert torch.allclose(data.private.pixels[:, 0], expected, atol=1e-3)


def test_given_ids_decide_the_hold_out_whatever_the_order(tmp_path: Path) -> None:
    ids = RANDOM.choice(1 << 62, 60, replace=False)
    first = load(saved(tmp_path, ids=ids))
    back = load(saved(tmp_path, images=IMAGES[::-1], labels=LABELS[::-1], ids=ids[::-1]))
    assert set(first.test.ids.tolist()) == set(back.test.ids.tolist())


def test_the_fingerprint_follows_the_contents(tmp_path: Path) -> None:
    first = load(saved(tmp_path, ids=ROWS)).train
    assert load(saved(tmp_path, ids=ROWS)).train.fingerprint == first.fingerprint
    changed = IMAGES.copy()
    changed[first.private.ids[0], 0, 0] ^= 1
    assert load(saved(tmp_path, images=changed, ids=ROWS)).train.fingerprint != first.fingerprint


BAD = [
    ({"images": None}, "no array 'images'; it holds labels"),
    ({"labels": None}, "no array 'labels'; it holds images"),
    ({"images": IMAGES.astype(object)}, "images has dtype object"),
    ({"labels": LABELS.astype(object)}, "labels has dtype object"),
    ({"images": IMAGES.astype(int)}, "images have dtype int64; expected uint8"),
    ({"images": IMAGES[0]}, r"images have shape \(8, 9\); expected \(N, H, W\)"),
    ({"images": IMAGES[..., None].repeat(4, -1)}, r"\(60, 8, 9, 4\); expected 1 or 3 channels"),
    ({"images": IMAGES[:, None, :, :3]}, r"may be \(N, H, W, C\) or"),
    ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images are empty"),
    ({"images": IMAGES[:59]}, "60 labels for 59 images"),
    ({"images": IMAGES.astype(float)}, "up to 255; expected 0 to 1, or uint8"),
    ({"images": IMAGES / 255.0 - 0.5}, "down to -0.5; expected 0 to 1"),
    ({"images": np.where(IMAGES > 250, np.nan, 0.5)}, "images hold NaN or infinite"),
    ({"images": np.where(IMAGES > 250, np.inf, 0.5)}, "images hold NaN or infinite"),
    ({"labels": LABELS.astype(float)}, "labels have dtype float64; expected integers"),
    ({"labels": LABELS[:, None]}, r"labels have shape \(60, 1\); expected \(N,\)"),
    ({"labels": LABELS - 1}, "labels go down to -1; expected 0 or more"),
    ({"labels": LABELS * 10**9}, "labels go up to 2000000000; declare so many"),
    ({"class_names": np.array(["a", "b"])}, "labels go up to 2, beyond the 2 class_names"),
    ({"class_names": np.array(list("abcd"))}, "no record of class 'd'"),
    ({"class_names": np.array(["a", "b", "a"])}, "class_names hold a name twice"),
    ({"class_names": np.arange(3)}, "class_names have dtype int64"),
    ({"ids": np.zeros(60, int)}, "ids hold a number twice"),
    ({"ids": np.arange(59)}, r"ids have dtype int64 and shape \(59,\); expected 60 integers"),
    ({"ids": np.arange(60.0)}, "ids have dtype float64"),
    ({"ids": np.arange(60).astype("u8") + np.uint64(1 << 63)}, "ids do not fit"),
    ({"test_images": IMAGES}, "one of test_images and test_labels"),
    ({"test_images": IMAGES[:, :7], "test_labels": LABELS}, "expected the same"),
    ({"test_images": IMAGES[:4], "test_labels": LABELS[:5]}, "5 test_labels for 4 test_images"),
    ({"images": IMAGES[:1], "labels": LABELS[:1]}, "too few records to hold out"),
]


@pytest.mark.parametrize(("changes", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_a_bad_file_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadData, match=words) as refusal:
        load(saved(tmp_path, **changes))
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(b"not an archive")
    with pytest.raises(BadData, match=r"mine\.npz is not an \.npz file"):
        load(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize("place", [200, 2000])
def test_a_damaged_zip_is_refused(tmp_path: Path, place: int) -> None:
    path = Path(saved(tmp_path))
    content = bytearray(path.read_bytes())
    content[place : place + 8] = bytes(255 - byte for byte in content[place : place + 8])
    path.write_bytes(content)
    with pytest.raises(BadData, match="damaged: images cannot be read"):
        load(str(path))


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no file or folder"):
        load(str(tmp_path / "nothing.npz"))
    with pytest.raises(BadData, match="no file or folder"):
        load("/" + "x" * 5000)


def test_without_ids_taking_a_record_out_of_the_file_moves_no_other(tmp_path):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (200, 6, 6), dtype=np.uint8)
    images[50] = images[3]  # equal records must still be told apart
    labels = np.arange(200) % 2
    labels[50] = labels[3]

    def sides(rows):
        np.savez(tmp_path / "x.npz", images=images[rows], labels=labels[rows])
        dataset = load(str(tmp_path / "x.npz"))
        return set(dataset.train.private.ids.tolist()), set(dataset.test.ids.tolist())

    train, test = sides(np.arange(200))
    assert len(train | test) == 200
    for gone in (0, 57, 199):
        fewer_train, fewer_test = sides(np.delete(np.arange(200), gone))
        assert fewer_train <= train
        assert fewer_test <= test
        assert len(fewer_train | fewer_test) == 199
