"""What a dataset is once loaded: private training records, and a test set beside them.

A record is an image, a label and an id. Ids are 64-bit, fixed for a record for ever and
independent of every other record: Poisson masks, splits and partitions are keyed functions of
the id, so that removing one record moves no other. Shapes: N records, C channels, H, W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Images:
    pixels: Tensor  # (N, C, H, W) float32 in [0, 1]
    labels: Tensor  # (N,) int64
    ids: Tensor  # (N,) int64, all different

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Tensor | slice) -> Images:
        return Images(self.pixels[rows], self.labels[rows], self.ids[rows])


@dataclass(frozen=True)
class PublicData:
    """Records that everybody may see: the user says so, and the card repeats it."""

    name: str
    images: Images  # labels are places in `class_names`
    class_names: tuple[str, ...]
    fingerprint: str
    # Records of the private classes that are declared public, to label images with. Their labels
    # are places in the class list of the private records.
    labelling: Images | None = None

    @property
    def facts(self) -> dict[str, object]:
        """What is declared public, for the privacy card."""
        facts: dict[str, object] = {"public data": f"{self.name}, {len(self.images):,} records"}
        if self.labelling is not None:
            facts["labelling records"] = (
                f"{len(self.labelling):,} records that show the private classes and are declared "
                "public"
            )
        return facts


@dataclass(frozen=True)
class TrainingData:
    """All that a method may read. The test set is not here, so no method can reach it."""

    name: str
    private: Images  # this worker's share of the records; all of them where there is one worker
    num_records: int  # N over all workers; treated as public
    class_names: tuple[str, ...]  # declared, never counted from the records
    fingerprint: str  # of the contents: for caches and resume on the private side only
    # The same on every worker. By keyword only, so that a class below may add fields of its own.
    public: PublicData | None = field(default=None, kw_only=True)
    # Places of the classes in the list of the whole dataset, where a word selected some of them.
    selected: tuple[int, ...] | None = field(default=None, kw_only=True)

    def numbers_of(self, labels: Sequence[int]) -> tuple[int, ...]:
        """What these classes are called in the whole dataset, whatever was selected of it."""
        known = self.selected
        return tuple(labels) if known is None else tuple(known[label] for label in labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.private.pixels.shape[1:]
        return channels, height, width

    @property
    def public_facts(self) -> dict[str, object]:
        """What the guarantee takes as known to everybody; printed on the privacy card."""
        return {
            "number of training records": self.num_records,
            "class list": list(self.class_names),
            "image shape": list(self.shape),
            **(self.public.facts if self.public is not None else {}),
        }


@dataclass(frozen=True)
class Dataset:
    train: TrainingData
    test: Images
    # Whether the test records are public knowledge. A hold-out cut from the user's own records
    # is as private as the rest: its accuracy then leaves only as a charged, noisy count.
    test_is_public: bool
    notes: tuple[str, ...] = field(default=())
