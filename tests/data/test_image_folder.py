"""The user's own folder of class folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpray.data.datasets import load
from dpray.data.records import Dataset
from dpray.errors import BadData


def quiet(line: str) -> None:
    pass


def write(path: Path, mode: str = "L", size: tuple[int, int] = (6, 5), value: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16") else (value, 0, 255)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in (("dog", 200), ("cat", 100)):
        for number in range(20):
            write(tmp_path / "pets" / name / f"{number}.png", value=value)
    return tmp_path / "pets"


def records_of(dataset: Dataset) -> tuple[set[tuple[int, float]], set[tuple[int, float]]]:
    """(id, first pixel) of every training and every test record."""
    train, test = (
        set(zip(part.ids.tolist(), part.pixels[:, 0, 0, 0].tolist(), strict=True))
        for part in (dataset.train.private, dataset.test)
    )
    return train, test


def test_class_folders_become_labels_in_sorted_order(folder: Path) -> None:
    dataset = load(str(folder), say=quiet)
    assert dataset.train.class_names == ("cat", "dog")
    assert dataset.train.shape == (1, 5, 6)
    expected = np.where(dataset.train.private.labels == 0, 100, 200) / 255
    assert np.allclose(dataset.train.private.pixels[:, 0, 0, 0], expected)
    assert not dataset.test_is_public


def test_removing_a_file_moves_no_other(folder: Path) -> None:
    for number in range(20):  # every image its own grey, so that a moved id is seen
        write(folder / "cat" / f"{number}.png", value=number)
        write(folder / "dog" / f"{number}.png", value=100 + number)
    train, test = records_of(load(str(folder), say=quiet))
    (folder / "cat" / "3.png").unlink()
    train_without, test_without = records_of(load(str(folder), say=quiet))
    assert train_without <= train
    assert test_without <= test
    assert len(train | test) - len(train_without | test_without) == 1


def test_one_colour_image_makes_all_of_them_rgb(folder: Path) -> None:
    write(folder / "cat" / "red.png", mode="RGB")
    assert load(str(folder), say=quiet).train.shape == (3, 5, 6)


def test_train_and_test_folders_are_honoured(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "train")
    (tmp_path / "all").mkdir()
    (tmp_path / "train").rename(tmp_path / "all" / "train")
    write(tmp_path / "all" / "test" / "dog" / "0.png")
    dataset = load(str(tmp_path / "all"), say=quiet)
    assert (len(dataset.train.private), len(dataset.test)) == (40, 1)
    assert dataset.test.labels.tolist() == [1]
    assert dataset.test_is_public


def test_a_class_may_be_called_train(folder: Path) -> None:
    write(folder / "train" / "0.png")
    assert load(str(folder), say=quiet).train.class_names == ("cat", "dog", "train")


def test_files_that_are_not_images_are_left_out_aloud(folder: Path) -> None:
    (folder / "cat" / "notes.txt").write_text("a cat")
    lines: list[str] = []
    load(str(folder), say=lines.append)
    assert lines == [f"{folder}: left out 1 files that are not images"]


def test_an_unreadable_image_is_refused_by_name(folder: Path) -> None:
    (folder / "cat" / "3.png").write_bytes(b"no image")
    with pytest.raises(BadData, match=r"cat/3\.png is not an image that can be read"):
        load(str(folder), say=quiet)


def test_a_torn_image_is_refused_by_name(folder: Path) -> None:
    path = folder / "cat" / "3.png"
    path.write_bytes(path.read_bytes()[:45])
    with pytest.raises(BadData, match=r"cat/3\.png is not an image that can be read"):
        load(str(folder), say=quiet)


def test_images_of_different_sizes_are_refused(folder: Path) -> None:
    write(folder / "dog" / "big.png", size=(7, 5))
    with pytest.raises(BadData, match=r"big\.png is 7 x 5 and cat/0\.png is 6 x 5"):
        load(str(folder), say=quiet)


def test_sixteen_bit_images_are_refused(folder: Path) -> None:
    write(folder / "dog" / "deep.png", mode="I;16")
    with pytest.raises(BadData, match=r"deep\.png has pixels of kind I;16; expected 8 bits"):
        load(str(folder), say=quiet)


def test_a_folder_without_class_folders_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "loose" / "0.png")
    with pytest.raises(BadData, match="has no class folders"):
        load(str(tmp_path / "loose"), say=quiet)


def test_an_empty_class_folder_is_refused(folder: Path) -> None:
    (folder / "emu").mkdir()
    with pytest.raises(BadData, match="emu holds no images"):
        load(str(folder), say=quiet)


def test_a_test_class_without_training_records_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "train")
    write(tmp_path / "test" / "emu" / "0.png")
    with pytest.raises(BadData, match="a class 'emu' that the training part has not"):
        load(str(tmp_path), say=quiet)
