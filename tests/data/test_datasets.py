"""Built-in datasets: digits whole, IDX files as read, CIFAR-10 in torchvision's own format."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpray.data.catalogue import catalogue
from dpray.data.datasets import BUILT_IN, fetch, load
from dpray.data.folders import home
from dpray.data.idx import read_idx
from dpray.data.torchvision_sets import middle_square
from dpray.errors import BadData, BadInput
from dpray.torchvision_shim import import_torchvision


def quiet(line: str) -> None:
    pass


def test_digits_load_without_a_network() -> None:
    dataset = load("digits", fetch_missing=False)
    pixels = dataset.train.private.pixels
    assert pixels.shape[1:] == (1, 28, 28)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert len(dataset.train.private) + len(dataset.test) == 1797
    assert 0.17 < len(dataset.test) / 1797 < 0.23
    assert dataset.test_is_public


def test_digits_are_the_same_each_time_and_no_id_is_in_both_parts() -> None:
    first, again = load("digits"), load("digits")
    assert first.train.fingerprint == again.train.fingerprint
    assert not set(first.train.private.ids.tolist()) & set(first.test.ids.tolist())


def test_an_idx_file_is_read_in_its_own_shape(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x").write_bytes(
        bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 4) + values.tobytes()
    )
    assert np.array_equal(read_idx(tmp_path / "x"), values)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x0d\x01", b"\0\0\x08\x03\0", b"\0\0\x08\x01\0\0\0\x05a"]
)
def test_a_file_that_is_not_idx_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some-file").write_bytes(content)
    with pytest.raises(BadData, match="some-file"):
        read_idx(tmp_path / "some-file")


def test_an_unknown_name_is_refused_with_a_guess() -> None:
    with pytest.raises(BadInput, match=r"no dataset 'mnits' \(did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(BadInput, match="no dataset 'mine'"):
        fetch("mine")


def test_mnist_that_is_not_there_is_named_with_the_cure() -> None:
    with pytest.raises(BadData, match=r"mnist is not in .*`dpray data fetch mnist`"):
        load("mnist", fetch_missing=False)


def test_cifar10_is_read_from_torchvisions_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "given" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(0, 256, (5, 3072), dtype=np.uint8)

    def put(name: str, content: dict) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    batch = {"data": rows, "labels": [3, 1, 4, 1, 5]}
    cifar10 = import_torchvision().datasets.CIFAR10
    # The sums of the tiny files take the place of the real ones; the loader is torchvision's.
    monkeypatch.setattr(cifar10, "train_list", [put("data_batch_1", batch)])
    monkeypatch.setattr(cifar10, "test_list", [put("test_batch", batch)])
    meta = dict(zip(("filename", "md5"), put("batches.meta", {"label_names": []}), strict=True))
    monkeypatch.setattr(cifar10, "meta", {**meta, "key": "label_names"})
    monkeypatch.setenv("DPRAY_DATA", str(tmp_path / "given"))

    dataset = load("cifar10", say=quiet)
    assert torch.equal(
        dataset.train.private.pixels, torch.tensor(rows).view(5, 3, 32, 32).float().div(255)
    )
    assert dataset.train.private.labels.tolist() == [3, 1, 4, 1, 5]
    assert dataset.test.ids[0] == 1 << 32


@pytest.mark.parametrize("name", ["cifar10", "celeba"])
def test_a_torchvision_dataset_that_is_not_there_is_one_clear_line(name: str) -> None:
    with pytest.raises(BadData, match=f"cannot get {name} through torchvision") as refusal:
        load(name, fetch_missing=False, say=quiet)
    assert "\n" not in str(refusal.value)


def test_the_middle_square_of_a_face_is_kept() -> None:
    image = Image.new("RGB", (178, 218), (255, 0, 0))
    image.paste((0, 255, 0), (0, 20, 178, 198))
    assert np.array_equal(middle_square(image, 64)[:, 0, 0], [0, 255, 0])
    assert middle_square(image, 64).shape == (3, 64, 64)
    assert (middle_square(image, 32)[0] == 0).all()


def test_the_catalogue_tells_what_is_on_disk() -> None:
    rows = {row.name: row for row in catalogue()}
    assert list(rows) == list(BUILT_IN)
    assert rows["digits"].on_disk
    assert not rows["mnist"].on_disk
    assert (rows["mnist"].num_train, rows["mnist"].num_test) == (60_000, 10_000)
    digits = load("digits")
    assert (rows["digits"].num_train, rows["digits"].num_test) == (
        len(digits.train.private),
        len(digits.test),
    )


def test_home_is_made_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPRAY_HOME", str(tmp_path / "home"))
    assert home().stat().st_mode & 0o077 == 0
