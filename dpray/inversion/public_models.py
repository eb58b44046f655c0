"""Public models, trained once on public images and kept by what they were trained on.

The name of a kept file is a digest of the version of the training code, of the recipe and of
the images: whatever changes one of them finds no file and trains. A damaged file is no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpray.data.fetch import to_stderr
from dpray.data.folders import data_cache
from dpray.data.records import Images
from dpray.data.sources import Say
from dpray.errors import BadInput, Diverged, StorageFailed
from dpray.inversion.autoencoder import train_autoencoder
from dpray.inversion.gan import train_gan
from dpray.inversion.recipes import VERSION, PublicRecipe
from dpray.models.batches import in_batches
from dpray.models.generators import Shape
from dpray.models.public_models import Autoencodes, DecodesLatents
from dpray.pool import Pool
from dpray.progress import Progress, silent
from dpray.storage import clear_errors, write_whole

_BATCH = 500
_CPU = torch.device("cpu")
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class PublicModel:
    """A trained model, frozen and in evaluation mode, with what it was made by."""

    recipe: PublicRecipe
    module: nn.Module

    @property
    def digest(self) -> str:
        """Of its weights: what is kept of records under this model carries it in its name."""
        digest = hashlib.sha256(self.recipe.json().encode())
        for name, value in self.module.state_dict().items():
            digest.update(f"/{name}/{list(value.shape)}/".encode())
            digest.update(value.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def as_json(self, shape: Shape) -> dict[str, Any]:
        """Its name and arguments in the table of models: a release rebuilds it from these."""
        return {"model": self.recipe.model, "arguments": self.recipe.arguments(shape)}

    def decode(self, latents: Tensor) -> Tensor:
        """(N, latent) to images (N, C, H, W) in [0, 1], without gradients."""
        return in_batches(cast(DecodesLatents, self.module).decode, latents, _BATCH, _CPU)

    def encode(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) to (N, latent), record-local, without gradients."""
        if self.recipe.kind != "autoencoder":
            raise BadInput(f"a public {self.recipe.kind} has no encoder; only an autoencoder has")
        return in_batches(cast(Autoencodes, self.module).encode, pixels, _BATCH, _CPU)


def public_model(
    recipe: PublicRecipe,
    images: Images,
    *,
    progress: Progress = silent,
    say: Say = to_stderr,
) -> PublicModel:
    """The model of a recipe, from the cache or trained now.

    Where several ranks need it, one of them makes it and the others are given its weights: two
    machines may round differently, and a public model must be one.
    """
    kept = _read(_cache_file(recipe, images), recipe, images)
    if kept is not None:
        return kept
    say(f"training a public {recipe.network} {_title(recipe)} on {len(images)} public images, once")
    weights = _trained(recipe, images.pixels, progress)
    return _keep(recipe, images, weights, say)


def public_models(
    recipes: Sequence[PublicRecipe],
    images: Images,
    *,
    pool: Pool,
    say: Say = to_stderr,
) -> list[PublicModel]:
    """The models of all recipes, in their order; those that are missing are trained at once."""
    found: dict[str, PublicModel] = {}
    missing: dict[str, PublicRecipe] = {}
    for recipe in recipes:
        kept = _read(_cache_file(recipe, images), recipe, images)
        if kept is None:
            missing[recipe.json()] = recipe
        else:
            found[recipe.json()] = kept
    if missing:
        say(f"training public models on {len(images)} public images, once: {len(missing)}")
        jobs = list(missing.values())
        results = pool.map(train_job, jobs, shared=images.pixels, label="public models")
        for recipe, weights in zip(jobs, results, strict=True):
            found[recipe.json()] = _keep(recipe, images, weights, say)
    return [found[recipe.json()] for recipe in recipes]


def train_job(recipe: PublicRecipe, pixels: Tensor) -> Weights:
    """One public model, for a pool: its weights."""
    return _trained(recipe, pixels, silent)


def _trained(recipe: PublicRecipe, pixels: Tensor, progress: Progress) -> Weights:
    if recipe.kind == "autoencoder":
        module = train_autoencoder(recipe, pixels, progress)
    else:
        module, _ = train_gan(recipe, pixels, progress)
    weights = {name: value.contiguous() for name, value in module.state_dict().items()}
    if not all(value.isfinite().all() for value in weights.values()):
        raise Diverged(
            f"the public {_title(recipe)} ended in weights that are not numbers; lower its lr "
            f"{recipe.full().lr:g}"
        )
    return weights


def _title(recipe: PublicRecipe) -> str:
    return recipe.kind if recipe.kind == "autoencoder" else recipe.loss


def _keep(recipe: PublicRecipe, images: Images, weights: Weights, say: Say) -> PublicModel:
    path = _cache_file(recipe, images)
    try:
        with clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(dict(weights)))
    except StorageFailed as failure:
        say(f"the public model is not kept: {failure}")
    return _holding(recipe, images, weights)


def _holding(recipe: PublicRecipe, images: Images, weights: Weights) -> PublicModel:
    channels, height, width = images.pixels.shape[1:]
    module = recipe.build((channels, height, width))
    module.load_state_dict(dict(weights))
    return PublicModel(recipe, module.eval().requires_grad_(False))


def _cache_file(recipe: PublicRecipe, images: Images) -> Path:
    """Named by public things alone: a fingerprint of their file may be that of private records."""
    digest = hashlib.sha256(f"{VERSION}/{recipe.json()}/".encode())
    digest.update(f"{list(images.pixels.shape)}/".encode())
    digest.update(images.pixels.contiguous().numpy().data)
    return data_cache() / "public-models" / f"{digest.hexdigest()[:32]}.safetensors"


def _read(path: Path, recipe: PublicRecipe, images: Images) -> PublicModel | None:
    try:
        return _holding(recipe, images, load_file(path))
    except (OSError, SafetensorError, KeyError, RuntimeError):
        return None
