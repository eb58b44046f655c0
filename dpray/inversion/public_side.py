"""All that model inversion makes of public records, before anything private is paid for or read.

The public model, the scale of its latents and, where images must be sorted, a classifier. They are
kept with the run: one that goes on after a crash must find latents in the same space, also where
the cache of public models is gone or another machine would round differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Run
from dpray.data.records import Images, PublicData
from dpray.inversion.extraction import Extraction
from dpray.inversion.public_models import PublicModel, public_model
from dpray.inversion.recipes import PublicRecipe
from dpray.inversion.reconstructions import public_reconstructions
from dpray.inversion.scaling import LatentScale, Scale, public_scale
from dpray.models.classifiers import ImageClassifier
from dpray.models.generators import Shape
from dpray.plain_classifier import train_classifier, untrained_classifier

_STAGE = "public"
_SHOWN = 200  # public images, from which the error of reconstructions is told


@dataclass(frozen=True, eq=False)
class PublicSide:
    model: PublicModel
    scale: LatentScale
    labeller: ImageClassifier | None


def public_side(
    recipe: PublicRecipe,
    extraction: Extraction,
    how: Scale,
    public: PublicData,
    run: Run,
    *,
    labelled: int | None,
) -> PublicSide:
    """Made once a run, on the first rank, and given to all. `labelled`: classes to be sorted into.

    Guarantee: reads public records alone.
    """
    labelling = public.labelling if labelled is not None else None

    def make() -> dict[str, Tensor]:
        model = public_model(recipe, public.images, progress=run.progress, say=_unsaid)
        with run.progress("public latents", 1) as bar:
            scale = public_scale(model, extraction, public.images, how=how)
            bar.advance()
            bar.note(_error(model, extraction, public.images))
        modules: dict[str, nn.Module] = {"model": model.module, "scale": scale}
        if labelling is not None and labelled is not None:
            with run.progress("labeller", 1) as bar:
                modules["labeller"] = train_classifier(labelling, labelled, run.seed)
                bar.advance()
        return pack(modules)

    channels, height, width = public.images.pixels.shape[1:]
    shape: Shape = (channels, height, width)
    side = PublicSide(
        PublicModel(recipe, recipe.build(shape).eval().requires_grad_(False)),
        LatentScale(recipe.latent),
        None
        if labelling is None or labelled is None
        else untrained_classifier(labelling, labelled, run.seed).eval().requires_grad_(False),
    )
    named = {"model": side.model.module, "scale": side.scale}
    modules = named if side.labeller is None else {**named, "labeller": side.labeller}
    unpack(_kept(run, make), modules)
    return side


def _kept(run: Run, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    checkpoint = run.checkpoints.latest(_STAGE, ledger_heads=run.ledger.heads)
    if checkpoint is not None:
        return dict(checkpoint.tensors)
    tensors = run.world.from_first(make)
    run.checkpoints.save(_STAGE, Checkpoint(1, tensors, run.ledger.head))
    return tensors


def _error(model: PublicModel, extraction: Extraction, public: Images) -> str:
    shown = public.pixels[:: max(1, len(public) // _SHOWN)][:_SHOWN]
    found = public_reconstructions(model, extraction, shown, [extraction.steps])[0]
    return f"error {found.error:.4f} a pixel, of public images"


def _unsaid(text: str) -> None:
    """The progress bar says it."""
