"""Public models for rows that read public data, and what they make of images they never saw.

All models that the rows need are trained at once, before any row runs; the cache then serves them.
Reconstructions are of public test images of the public classes, never of private records, and
are kept in the results folder for the picture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dpray import methods
from dpray.api import with_public_words
from dpray.data.datasets import load
from dpray.data.records import PublicData
from dpray.data.splits import keyed_fraction
from dpray.errors import BadInput, DprayError
from dpray.execute import check, load_for
from dpray.inversion.public_models import public_model, public_models
from dpray.inversion.recipes import VERSION, PublicRecipe
from dpray.inversion.reconstructions import public_reconstructions
from dpray.methods.dpmi import Dpmi
from dpray.storage import write_whole
from tables.dpmi_costs import METHOD
from tables.jobs import How, Workers, note
from tables.kept import Say
from tables.rows import Row

STEPS = (0, 10, 25, 50, 100, 200, 400)
WAYS = {
    "ae-grad": "autoencoder, latents by gradient",
    "ae-enc": "autoencoder, latents by its encoder",
    "wgan": "GAN, latents by projected gradient",
}
_IMAGES = 250  # that errors are over
_SALT = "dpray/shown-reconstructions"


def ready_public_models(rows: Sequence[Row], workers: Workers, how: How) -> None:
    """Trains what is not in the cache. What fails here, its rows will try and tell themselves."""
    wanted: dict[tuple[str, str | None], tuple[Row, dict[str, PublicRecipe]]] = {}
    for row in rows:
        recipe = _recipe(row)
        if recipe is not None:
            spec = with_public_words(row.spec(0))
            _, recipes = wanted.setdefault((spec.dataset, spec.public), (row, {}))
            recipes[recipe.json()] = recipe
    for (_, word), (row, recipes) in wanted.items():
        try:
            public = public_data(row)
            with workers.pool(len(recipes), how.progress) as (pool, _, _):
                public_models(list(recipes.values()), public.images, pool=pool, say=note)
        except DprayError as error:
            note(f"public models on {word}: {error}")


def _recipe(row: Row) -> PublicRecipe | None:
    if not hasattr(methods.find(row.method), "recipe"):
        return None
    found = check(row.spec(0)).recipe()  # type: ignore[attr-defined]
    return found if isinstance(found, PublicRecipe) else None


def public_data(row: Row) -> PublicData:
    spec = with_public_words(row.spec(0))
    public = load_for(spec, check(spec), note).train.public
    assert public is not None
    return public


@dataclass(frozen=True)
class Inversion:
    """Reconstructions by the public model and the extraction of a row; a job."""

    row: Row
    folder: Path

    @property
    def way(self) -> str:
        return str(self.method.combo).rpartition("-")[0]

    @property
    def name(self) -> str:
        return f"reconstructions, {WAYS[self.way]}"

    @property
    def method(self) -> Dpmi:
        method = check(self.row.spec(0))
        assert isinstance(method, Dpmi)
        return method

    @property
    def steps(self) -> tuple[int, ...]:
        return (0,) if self.method.extraction().kind == "encoder" else STEPS

    @property
    def finished(self) -> Path:
        """Named by all that decides what the images look like."""
        word = with_public_words(self.row.spec(0)).public
        recipe, extraction = self.method.recipe().json(), self.method.extraction().digest()
        content = json.dumps([word, VERSION, recipe, extraction, self.steps, _IMAGES])
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self.folder / f"reconstructions-{self.way}-{digest}.safetensors"

    def read(self) -> dict[str, Tensor] | None:
        """`images` (N, C, H, W), `steps` and `errors` (S,), `pixels` (S, N, C, H, W)."""
        try:
            return load_file(self.finished)
        except (OSError, SafetensorError):
            return None

    def do(self, how: How, say: Say) -> None:
        public, extraction = public_data(self.row), self.method.extraction()
        model = public_model(
            self.method.recipe(),
            public.images,
            progress=how.progress,
            say=say,
        )
        images = held_out_images(self.row, say)
        made = public_reconstructions(model, extraction, images, self.steps)
        value = {
            "images": images,
            "steps": torch.tensor([one.steps for one in made]),
            "errors": torch.tensor([one.error for one in made]),
            "pixels": torch.stack([one.pixels for one in made]),
        }
        write_whole(self.finished, save(value))


def held_out_images(row: Row, say: Say) -> Tensor:
    """Public test images of the public classes, classes in turn: no public model saw them."""
    word = with_public_words(row.spec(0)).public
    assert word is not None
    dataset = load(word, say=say)
    if not dataset.test_is_public:
        raise BadInput(f"{word} has no public test images to show reconstructions of")
    order = keyed_fraction(dataset.test.ids, _SALT).argsort(stable=True)
    labels = dataset.test.labels[order]
    # A record's place within its own class decides: the first of every class come first.
    places = torch.zeros(len(labels), dtype=torch.long)
    for label in labels.unique():
        own = labels == label
        places[own] = torch.arange(int(own.sum()))
    turns = (places * dataset.train.num_classes + labels).argsort(stable=True)
    return dataset.test.pixels[order[turns[:_IMAGES]]]


def inversions_of(rows: Sequence[Row], folder: Path) -> list[Inversion]:
    """One for each way to find latents that these rows take, where it is not kept yet."""
    return [one for one in ways_of(rows, folder) if one.read() is None]


def ways_of(rows: Sequence[Row], folder: Path) -> list[Inversion]:
    """The first row of every way whose public model and extraction are the method's own."""
    found: dict[str, Inversion] = {}
    for row in rows:
        if row.method != METHOD or row.public is not None:
            continue
        one = Inversion(row, folder)
        own, usual = one.method, Dpmi(combo=one.method.combo)
        if (own.recipe(), own.extraction()) == (usual.recipe(), usual.extraction()):
            found.setdefault(one.way, one)
    return [found[way] for way in WAYS if way in found]
