"""Latents of records under a public model: those whose image is most like the record.

The loss is a sum over records of each record's own error, the number of steps and their sizes
are public and fixed, starts are public, and nothing is averaged over a batch: the latents of a
record are a function of that record, the public model and the settings, and of no other record.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from dpray.errors import BadInput, unknown
from dpray.models.public_models import Autoencodes, DecodesLatents

Kind = Literal["encoder", "gradient", "projected"]
Start = Literal["normal", "zero", "encoder"]
_VERSION = 1  # part of every digest: raise it with any change below that alters latents
_BATCH = 250  # records at a time: what fits into the caches of a processor
# In a ball of radius 10 longer steps than these lose some records to pixels that stay black.
_LR = {"encoder": 0.3, "gradient": 0.3, "projected": 0.1}
_LAST = 0.01  # the last step's size, as a share of the first one's
_SECOND, _TINY = 0.99, 1e-8  # of Adam: what it keeps of squared gradients, what it adds to them


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """How latents are found; all of it public.

    `encoder`: one pass of the encoder, and none of the steps. `gradient`: Adam, each record for
    itself, on its mean squared error per pixel. `projected`: the same, and after every step back
    into the ball around zero on whose surface the start lies: the prior N(0, I) then finds no
    latent less likely than the start.
    """

    kind: Kind = "gradient"
    steps: int = 200
    # Of the first step; it falls to a hundredth along half a cosine. None: what suits the kind.
    lr: float | None = None
    momentum: float = 0.8
    starts: int = 1  # each record keeps the one that ends at the smallest error
    # "normal": draws from N(0, I), the same for all records. The others are for `gradient`
    # alone, and one start each; "encoder" is the record's own pass through the encoder.
    start: Start = "normal"
    seed: int = 0  # of the draws

    def __post_init__(self) -> None:
        for name, choices in (("kind", get_args(Kind)), ("start", get_args(Start))):
            if getattr(self, name) not in choices:
                raise unknown(f"{name} of an extraction", getattr(self, name), choices)
        if self.steps < 0 or self.starts < 1:
            raise BadInput(
                f"steps {self.steps} must be at least 0, starts {self.starts} at least 1"
            )
        if not 0 < self.first_size < math.inf or not 0 <= self.momentum < 1:
            raise BadInput(
                f"lr {self.first_size:g} must be above 0, momentum {self.momentum:g} at least 0 "
                "and below 1"
            )
        if self.start != "normal" and (self.kind == "projected" or self.starts > 1):
            raise BadInput(
                f"start {self.start!r} is a single one and gives no ball to be projected into; "
                "choose start normal, or kind gradient with one start"
            )

    @property
    def first_size(self) -> float:
        return _LR[self.kind] if self.lr is None else self.lr

    def step_size(self, step: int) -> float:
        """By a public schedule, whatever the records."""
        part = step / max(1, self.steps - 1)
        return self.first_size * (_LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * part)))

    def digest(self) -> str:
        """Of all settings: for the name under which latents are kept."""
        said = {**asdict(self), "lr": self.first_size, "version": _VERSION}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def extract(module: nn.Module, pixels: Tensor, extraction: Extraction) -> Tensor:
    """(N, C, H, W) records to (N, latent), with `module` in evaluation mode.

    Guarantee: record-local. Row i depends on record i, on the module and on the settings, and
    only within rounding on how many records are with it.
    """
    # A copy, for other threads may use the module too.
    model = copy.deepcopy(module).eval() if module.training else module
    if extraction.kind == "encoder" or extraction.start == "encoder":
        _check_encoder(model)
    parts = [_extract(model, part, extraction) for part in pixels.split(_BATCH)]
    return torch.cat(parts).detach()


def public_starts(extraction: Extraction, latent: int) -> Tensor:
    """(starts, latent): the same for all records."""
    if extraction.start == "zero":
        return torch.zeros(1, latent)
    rng = torch.Generator().manual_seed(extraction.seed)
    # One by one: the first of them are those of an extraction with fewer starts.
    return torch.stack([torch.randn(latent, generator=rng) for _ in range(extraction.starts)])


@torch.no_grad()
def record_errors(module: nn.Module, latents: Tensor, pixels: Tensor) -> Tensor:
    """(N,): the mean squared error per pixel of each record's reconstruction."""
    made = cast(DecodesLatents, module).decode(latents)
    return (made - pixels).square().flatten(1).mean(1)


class LatentExtractor(nn.Module):
    """`extract` as a module: what `private_features` keeps, and what travels to a worker."""

    def __init__(self, module: nn.Module, extraction: Extraction) -> None:
        super().__init__()
        self.public = copy.deepcopy(module).eval().requires_grad_(False)
        self.extraction = extraction

    def forward(self, pixels: Tensor) -> Tensor:
        return extract(self.public, pixels, self.extraction)


def latent_extractor(module: nn.Module, extraction: Extraction) -> LatentExtractor:
    """Images to latents under a frozen copy of `module`, wherever gradients are off."""
    return LatentExtractor(module, extraction)


def _check_encoder(module: nn.Module) -> None:
    if not hasattr(module, "encode"):
        raise BadInput(
            "only an autoencoder has an encoder; a generator is inverted by gradient or projected"
        )


def _extract(module: nn.Module, pixels: Tensor, extraction: Extraction) -> Tensor:
    model = cast(DecodesLatents, module)
    with torch.no_grad():
        if extraction.kind == "encoder":
            return cast(Autoencodes, module).encode(pixels)
        if extraction.start == "encoder":
            own = cast(Autoencodes, module).encode(pixels)
            return _descend(model, pixels, own, extraction)
        found = [
            _descend(model, pixels, start.expand(len(pixels), -1), extraction)
            for start in public_starts(extraction, model.latent).to(pixels)
        ]
        if len(found) == 1:
            return found[0]
        errors = torch.stack([record_errors(module, latents, pixels) for latents in found])
        rows = torch.arange(len(pixels), device=pixels.device)
        return torch.stack(found)[errors.argmin(0), rows]


def _descend(
    model: DecodesLatents, pixels: Tensor, start: Tensor, extraction: Extraction
) -> Tensor:
    """Every record on its own: Adam's moments are a coordinate's, so no two records share one."""
    latents = start.clone()
    radius = start.norm(dim=1, keepdim=True)
    first, second = torch.zeros_like(latents), torch.zeros_like(latents)
    for step in range(extraction.steps):
        with torch.enable_grad():
            leaf = latents.detach().requires_grad_()
            # A sum over records of means over pixels: a mean over records would make a step
            # of one of them depend on how many there are.
            loss = (model.decode(leaf) - pixels).square().sum() / math.prod(pixels.shape[1:])
            (grads,) = torch.autograd.grad(loss, leaf)
        first.lerp_(grads, 1 - extraction.momentum)
        second.lerp_(grads.square(), 1 - _SECOND)
        mean = first / (1 - extraction.momentum ** (step + 1))
        deviation = (second / (1 - _SECOND ** (step + 1))).sqrt_().add_(_TINY)
        latents = latents.addcdiv(mean, deviation, value=-extraction.step_size(step))
        if extraction.kind == "projected":
            latents = latents / (latents.norm(dim=1, keepdim=True) / radius).clamp_min_(1.0)
    return latents
