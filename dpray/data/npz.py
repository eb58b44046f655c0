"""The user's own arrays in an .npz file, checked on the way in.

Wanted: `images` (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1 or 3, uint8 or floating
in 0 to 1; `labels` (N,) integers. Welcome: `class_names`, `ids`, `test_images` with
`test_labels`; `drawn` is what `dpray sample` adds. Everything else about the file is refused in
one line that names the array. The file is never unpickled.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpray.data.arrays import FIRST_TEST_ID, StoredImages
from dpray.errors import BadData

_KNOWN = ("images", "labels", "class_names", "ids", "test_images", "test_labels", "drawn")
# Without a declared list the largest label sets its length, and a wrong one would be endless.
_MOST_UNDECLARED_CLASSES = 10_000


@dataclass(frozen=True)
class OwnRecords:
    train: StoredImages
    test: StoredImages | None  # None where the user declared no test part
    class_names: tuple[str, ...]
    notes: tuple[str, ...]


def read_npz(path: Path) -> OwnRecords:
    arrays = _open(path)
    where = path.name
    for name in ("images", "labels"):
        if name not in arrays:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise BadData(f"{where} has no array {name!r}; it holds {found}")
    if ("test_images" in arrays) != ("test_labels" in arrays):
        raise BadData(f"{where} has one of test_images and test_labels; give both or neither")
    drawn = _drawn(arrays)
    notes = [] if drawn is None else [_drawn_note(drawn)]

    pixels = _pixels(where, "images", arrays["images"])
    labels = _labels(where, "labels", arrays["labels"], len(pixels))
    test_pixels = test_labels = None
    if "test_images" in arrays:
        test_pixels = _pixels(where, "test_images", arrays["test_images"])
        test_labels = _labels(where, "test_labels", arrays["test_labels"], len(test_pixels))
        if test_pixels.shape[1:] != pixels.shape[1:]:
            raise BadData(
                f"{where}: test_images have shape {test_pixels.shape[1:]} each (channels, height, "
                f"width) and images {pixels.shape[1:]}; expected the same"
            )
        notes.append("test_images were declared as a test set: treated as public")

    if "class_names" in arrays:
        class_names = _class_names(where, arrays["class_names"])
    else:
        largest = max(int(part.max()) for part in (labels, test_labels) if part is not None)
        if largest >= _MOST_UNDECLARED_CLASSES:
            raise BadData(f"{where}: labels go up to {largest}; declare so many in class_names")
        class_names = tuple(str(number) for number in range(largest + 1))
        notes.append("class list taken from the labels: treated as public")
    for name, part in (("labels", labels), ("test_labels", test_labels)):
        if part is not None and part.max() >= len(class_names):
            raise BadData(
                f"{where}: {name} go up to {part.max()}, beyond the {len(class_names)} "
                f"class_names; expected 0 to {len(class_names) - 1}"
            )
    if "class_names" in arrays:
        _every_class_has_a_record(where, labels, class_names)

    if "ids" in arrays:
        ids = _ids(where, arrays["ids"], len(pixels))
    else:
        ids = content_ids(pixels, labels)
    test = None
    if test_pixels is not None and test_labels is not None:
        test = StoredImages(test_pixels, test_labels, _unused_ids(ids, len(test_pixels)))
    return OwnRecords(StoredImages(pixels, labels, ids), test, class_names, tuple(notes))


def drawn_from(path: Path) -> dict[str, Any] | None:
    """What `dpray sample` wrote of the images it drew; None for a file made elsewhere."""
    return _drawn(_open(path))


def _drawn(arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    try:
        found = json.loads(str(arrays["drawn"]))
    except (KeyError, ValueError):
        return None
    return found if isinstance(found, dict) and "model" in found else None


def _drawn_note(drawn: dict[str, Any]) -> str:
    privacy = drawn.get("privacy") or {}
    epsilon = privacy.get("epsilon")
    cost = f"epsilon {epsilon:.4g}" if isinstance(epsilon, int | float) else "an unknown epsilon"
    return (
        f"these images were drawn from {drawn['model']} at {cost}: what is made from them costs "
        "those who were in its data nothing more; here they are treated as private records anew"
    )


def _open(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise BadData(f"{path.name} is not an .npz file (a zip of arrays), or it is damaged")
    arrays = {}
    name = ""
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                if name in _KNOWN:
                    arrays[name] = archive[name]
                else:
                    arrays.setdefault(name, np.empty(0))  # only named in messages
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        if "allow_pickle" in str(error):
            raise BadData(
                f"{path.name}: {name} has dtype object, which is never loaded; expected numbers "
                "(or text for class_names)"
            ) from None
        raise BadData(f"{path.name} is damaged: {name or 'its index'} cannot be read") from None
    except MemoryError:
        raise BadData(f"{path.name}: {name} does not fit into memory") from None
    return arrays


def _pixels(where: str, name: str, array: np.ndarray) -> np.ndarray:
    """(N, C, H, W), as stored where stored bytes and as float32 where floating."""
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise BadData(
            f"{where}: {name} have dtype {array.dtype}; expected uint8 (0 to 255) or floating "
            "(0 to 1)"
        )
    if array.ndim not in (3, 4):
        raise BadData(
            f"{where}: {name} have shape {array.shape}; expected (N, H, W), (N, H, W, C) or "
            "(N, C, H, W)"
        )
    if array.size == 0:
        raise BadData(f"{where}: {name} are empty, shape {array.shape}")
    if array.dtype.kind == "f":
        low, high = array.min(), array.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            raise BadData(f"{where}: {name} hold NaN or infinite values; expected 0 to 1")
        if low < 0 or high > 1:
            beyond = f"up to {high:.9g}" if high > 1 else f"down to {low:.9g}"
            raise BadData(
                f"{where}: {name} are float with values {beyond}; expected 0 to 1, or uint8"
            )
        array = array.astype(np.float32, copy=False)
    return _channels_first(where, name, array)


def _channels_first(where: str, name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 3:
        return array[:, None]
    first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
    if first and last:
        raise BadData(
            f"{where}: {name} have shape {array.shape}, which may be (N, H, W, C) or "
            "(N, C, H, W); expected a width and height other than 1 and 3"
        )
    if not first and not last:
        raise BadData(f"{where}: {name} have shape {array.shape}; expected 1 or 3 channels")
    return array if first else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _labels(where: str, name: str, array: np.ndarray, num_images: int) -> np.ndarray:
    if array.dtype.kind not in "iu":
        raise BadData(f"{where}: {name} have dtype {array.dtype}; expected integers")
    if array.ndim != 1:
        raise BadData(f"{where}: {name} have shape {array.shape}; expected (N,)")
    if len(array) != num_images:
        images = name.replace("labels", "images")
        raise BadData(f"{where}: {len(array)} {name} for {num_images} {images}; expected as many")
    if array.min() < 0:
        raise BadData(f"{where}: {name} go down to {array.min()}; expected 0 or more")
    if array.max() > np.iinfo(np.int64).max:
        raise BadData(f"{where}: {name} do not fit into 64 bits")
    return array.astype(np.int64)


def _class_names(where: str, array: np.ndarray) -> tuple[str, ...]:
    if array.dtype.kind not in "US" or array.ndim != 1 or len(array) == 0:
        raise BadData(
            f"{where}: class_names have dtype {array.dtype} and shape {array.shape}; expected "
            "text, one name a class"
        )
    try:
        names = tuple(
            name.decode() if isinstance(name, bytes) else str(name) for name in array.tolist()
        )
    except UnicodeDecodeError:
        raise BadData(f"{where}: class_names are not UTF-8 text") from None
    if len(set(names)) < len(names):
        raise BadData(f"{where}: class_names hold a name twice; expected all different")
    return names


def _every_class_has_a_record(where: str, labels: np.ndarray, names: tuple[str, ...]) -> None:
    absent = sorted(set(range(len(names))) - set(np.unique(labels).tolist()))
    if absent:
        raise BadData(
            f"{where}: labels have no record of class {names[absent[0]]!r}; expected at least "
            "one for every name in class_names"
        )


def _ids(where: str, array: np.ndarray, num_images: int) -> np.ndarray:
    if array.dtype.kind not in "iu" or array.shape != (num_images,):
        raise BadData(
            f"{where}: ids have dtype {array.dtype} and shape {array.shape}; expected "
            f"{num_images} integers"
        )
    if array.max() > np.iinfo(np.int64).max:
        raise BadData(f"{where}: ids do not fit into 64 bits with a sign")
    if len(np.unique(array)) < num_images:
        raise BadData(f"{where}: ids hold a number twice; expected all different")
    return array.astype(np.int64)


def content_ids(pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Ids from what a record holds, where the file gives none.

    A row number would not do: taking one row out would give every later record another id,
    and move some of them between training and hold-out. Equal records are counted apart, so
    the id of a record depends on the records equal to it and on no other.
    """
    seen: Counter[bytes] = Counter()
    ids = np.empty(len(labels), dtype=np.int64)
    for row, (image, label) in enumerate(zip(np.ascontiguousarray(pixels), labels, strict=True)):
        content = hashlib.blake2b(image.tobytes() + int(label).to_bytes(8, "little")).digest()
        seen[content] += 1
        copy = hashlib.blake2b(content + seen[content].to_bytes(8, "little"), digest_size=8)
        ids[row] = int.from_bytes(copy.digest(), "little") >> 1
    return ids


def _unused_ids(taken: np.ndarray, count: int) -> np.ndarray:
    ids = np.arange(FIRST_TEST_ID, FIRST_TEST_ID + count, dtype=np.int64)
    while np.isin(ids, taken).any():
        ids += FIRST_TEST_ID
    return ids
