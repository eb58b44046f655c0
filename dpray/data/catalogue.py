"""What `dpray data list` shows: one row a built-in dataset. Nothing is loaded or hashed."""

from __future__ import annotations

from dataclasses import dataclass

from dpray.data.datasets import BUILT_IN


@dataclass(frozen=True)
class CatalogueRow:
    name: str
    shape: tuple[int, int, int]  # channels, height, width
    class_names: tuple[str, ...]
    num_train: int
    num_test: int
    on_disk: bool
    source: str


def catalogue() -> list[CatalogueRow]:
    return [
        CatalogueRow(
            name=entry.name,
            shape=entry.shape,
            class_names=entry.class_names,
            num_train=entry.num_train,
            num_test=entry.num_test,
            on_disk=entry.on_disk(),
            source=entry.source,
        )
        for entry in BUILT_IN.values()
    ]
