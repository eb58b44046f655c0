"""Imports torchvision where its compiled half does not fit the torch beside it.

A CUDA build of torchvision beside a CPU torch cannot load its operators, and then stops in the
middle of its import because two of them have no schema. dpray needs only the Python half
(datasets, their mirrors, transforms), so the two schemas are declared here and the import is
tried again. The operators stay without a kernel: calling `torchvision.ops.nms` still fails.
Where torchvision loads by itself nothing is declared.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# A schema lives only as long as the library object that declared it.
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """The torchvision module; raises what a plain import raises where the shim cannot help."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _forget_half_imported()
    if not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in _OPERATORS:
            library.define(operator + _SCHEMA)
        _declared.append(library)
    return importlib.import_module("torchvision")


def _forget_half_imported() -> None:
    """A failed import leaves its submodules behind, and a second one would build on them."""
    for name in list(sys.modules):
        if name == "torchvision" or name.startswith("torchvision."):
            del sys.modules[name]
