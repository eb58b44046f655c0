"""The Inception network that published FID figures are made with, through pytorch-fid.

Its weights (95 MB) are a file the user gives, or one in the cache, or pytorch-fid's download. All
are checked: the name of the file carries the start of its SHA-256. Where there are none the
scores that need them are left out, and nothing fails.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.request
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.data.folders import data_cache
from dpray.data.sources import Say, one_line
from dpray.errors import BadInput
from dpray.models.batches import in_batches
from dpray.torchvision_shim import import_torchvision

WEIGHTS_NAME = "pt_inception-2015-12-05-6726825d.pth"
WEIGHTS_SHA256_START = "6726825d"
WEIGHTS_URL = (
    f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{WEIGHTS_NAME}"
)

_CONNECT_SECONDS = 10
_SIDE = 299  # what the network was trained on; pytorch-fid resizes to it as well
_BATCH = 25  # activations of one batch take 200 MB, and there is a batch for every thread


def find_weights(given: Path | None, say: Say) -> Path | None:
    """The file of weights, checked: `given`, else from the cache, else downloaded; or None."""
    if given is not None:
        fault = _fault(given)
        if fault:
            raise BadInput(f"--inception-weights {given}: {fault}; get it from {WEIGHTS_URL}")
        return given
    kept = data_cache() / "inception" / WEIGHTS_NAME
    if _fault(kept) is None:
        return kept
    say(f"Inception weights: downloading {WEIGHTS_URL}")
    reason = _download(kept)
    if reason is None:
        return kept
    say(f"Inception weights: not from there, {reason}")
    return None


def _fault(path: Path) -> str | None:
    """What is wrong with the file of weights, in a few words; None where it is right."""
    try:
        with open(path, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return f"it cannot be read ({one_line(error)})"
    if not found.startswith(WEIGHTS_SHA256_START):
        return f"its SHA-256 starts with {found[:8]} instead of {WEIGHTS_SHA256_START}"
    return None


def _download(target: Path) -> str | None:
    """Why the weights could not be had; None where `target` now holds them, whole."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(WEIGHTS_URL, timeout=_CONNECT_SECONDS) as answer,
            open(partial, "wb") as opened,
        ):
            shutil.copyfileobj(answer, opened)
        fault = _fault(partial)
        if fault is None:
            os.replace(partial, target)
        return fault
    except (OSError, http.client.HTTPException, ValueError) as error:
        return one_line(error)
    finally:
        partial.unlink(missing_ok=True)


class Inception:
    """Images in [0, 1] to FID's 2048 features, and those to the probabilities of 1008 classes."""

    def __init__(self, weights: Path, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        network = _network(weights).eval().requires_grad_(False).to(self.device)
        # Without its last layer the network gives what that layer reads: the pooled features.
        self.classes = network.get_submodule("fc")
        network.set_submodule("fc", nn.Identity())
        self.network = network

    def features(self, images: Tensor) -> Tensor:
        """(N, 1 or 3, H, W) in [0, 1] to (N, 2048)."""
        if images.shape[1] not in (1, 3):
            raise BadInput(f"Inception reads images of 1 or 3 channels, not {images.shape[1]}")
        return in_batches(self._pooled, images, _BATCH, self.device)

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """(N, 2048) features to (N, 1008)."""
        logits: Tensor = self.classes(features.to(self.device))
        return logits.softmax(1).cpu()

    def _pooled(self, images: Tensor) -> Tensor:
        colours = images.expand(-1, 3, -1, -1)
        large = F.interpolate(colours, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        pooled: Tensor = self.network(large * 2 - 1)
        return pooled


def _network(weights: Path) -> nn.Module:
    """pytorch-fid's variant of torchvision's Inception, holding `weights`."""
    import_torchvision()  # before pytorch-fid does, which knows no remedy if it fails
    from pytorch_fid import inception

    state = torch.load(weights, map_location="cpu", weights_only=True)
    # Its builder always downloads; handing it the checked file is the only way to stop it.
    download = inception.load_state_dict_from_url
    inception.load_state_dict_from_url = lambda url, progress: state
    try:
        network: nn.Module = inception.fid_inception_v3()
    finally:
        inception.load_state_dict_from_url = download
    return network
