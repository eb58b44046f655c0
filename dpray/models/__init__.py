"""The table of models: a name and JSON arguments give an `nn.Module`.

Plain modules, no privacy and no Ray. A release stores the name and the arguments, so whatever
is in this table can be rebuilt from a file without unpickling code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from dpray.errors import unknown

# name -> where it is defined. Imported on use: a prediction does not load every architecture.
_TABLE: dict[str, str] = {
    "image-classifier": "dpray.models.classifiers:ImageClassifier",
    "by-task": "dpray.models.tasks:ByTask",
    "cell-decoder": "dpray.models.clusters:CellDecoder",
    "class-decoder": "dpray.models.generators:ClassDecoder",
    "conditional-decoder": "dpray.models.generators:ConditionalDecoder",
    "conv-autoencoder": "dpray.models.public_models:ConvAutoencoder",
    "conv-decoder": "dpray.models.conditional_vaes:ConvDecoder",
    "conv-encoder": "dpray.models.conditional_vaes:ConvEncoder",
    "conv-generator": "dpray.models.generators:ConvGenerator",
    "conv-latent-generator": "dpray.models.public_models:ConvLatentGenerator",
    "dcgan-generator": "dpray.models.conditional_gans:DcganGenerator",
    "deconv-generator": "dpray.models.deconv_generators:DeconvGenerator",
    "encoder": "dpray.models.autoencoders:Encoder",
    "fc-autoencoder": "dpray.models.public_models:FcAutoencoder",
    "fc-latent-generator": "dpray.models.public_models:FcGenerator",
    "gaussian-mixture": "dpray.models.mixtures:GaussianMixture",
    "image-set": "dpray.models.generators:ImageSet",
    "latent-synthesizer": "dpray.models.latent_models:LatentSynthesizer",
    "mlp-generator": "dpray.models.generators:MlpGenerator",
    "passed-through": "dpray.models.passed_through:PassedThrough",
    "prior-generator": "dpray.models.priors:PriorGenerator",
    "snapshots": "dpray.models.tasks:Snapshots",
    "warped-set": "dpray.models.warped_sets:WarpedSet",
}


def build(name: str, **arguments: Any) -> nn.Module:
    if name not in _TABLE:
        raise unknown("model", name, _TABLE)
    module, _, attribute = _TABLE[name].partition(":")
    make: Callable[..., nn.Module] = getattr(import_module(module), attribute)
    return make(**arguments)
