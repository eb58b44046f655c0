"""VaeGM: one small variational autoencoder a class, each trained on noisy gradients.

DP-VaeGM of Chen et al. (2018), https://arxiv.org/abs/1812.02274, on pixels; the union of what the
decoders draw is the labelled release. Private data are touched in `noisy_gradient` alone, on
Poisson batches of a class. Classes are disjoint, so each may spend the whole budget on its own
records: `privacy/parts.py` says when that holds, and so does the card. How many records a class
has is private: sample rate, batch and steps follow from an even share of all records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from dpray import models
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import Images, TrainingData
from dpray.data.tasks import TaskData
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.autoencoders import Encoder, VariationalAutoencoder
from dpray.models.generators import ConditionalDecoder, coarse_shape
from dpray.models.tasks import ByTask
from dpray.privacy.parts import of_classes
from dpray.privacy.queries import PoissonGradients, gradients_at_noise, steps_of_epochs
from dpray.vae_training import VaeTraining, refuse_settings

_DECODER = "conditional-decoder"  # without classes: the label only says which of them to ask


@register("vaegm")
@dataclass(frozen=True, kw_only=True)
class VaeGM:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "a small VAE for each class, trained on noisy clipped gradients"
    paper: ClassVar[str] = "Chen et al. 2018"
    classes: ClassVar[str] = "per-class"  # one learner each, as other methods call it
    # The paper states no sizes and steps: the usual VAE, and 3,000 steps for a class of 6,000.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        "paper": {
            "latent": 20,
            "hidden": 400,
            "grain": 1,
            "batch_size": 512,
            "epochs": 256.0,
            "lr": 2e-3,
        },
    }
    gpu_preset: ClassVar[str] = "paper"

    latent: int = 8
    hidden: int = 64
    # Every other pixel is learnt and the rest is filled in: of a class there are few records, and
    # a fourth of the weights is a fourth of the noise to put on them.
    grain: int = 2
    kl_weight: float = 1.0
    batch_size: int = 2048  # expected, of one class: batches are Poisson samples
    epochs: float = 80
    clip_norm: float = 1.0
    lr: float = 1e-2  # of Adam, at first; it falls to nothing over the steps
    averaging: float = 0.95  # decay of the average of the weights that is released
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        if isinstance(data, TaskData):
            raise BadInput(
                "vaegm cuts records by class itself and cannot be given those of one task: "
                "choose dp-vae as the learner"
            )
        refuse_settings(self, whole=("grain",), positive=())
        self._build(data)  # a grain that does not fit is refused

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        numbers = data.numbers_of(range(data.num_classes))
        parts = [run.part_of(f"class {number}", of_classes([number])) for number in numbers]
        training = VaeTraining.of(self)
        training.check(self._build(data).to(run.device), data.shape, 1, run)
        query = run.world.from_first(lambda: self._query(data, parts[0]))
        paid = [part.ledger.pay(query) for part in parts]  # private data may be read now
        run.facts.update(query.facts())
        run.facts["sampling"] = f"within each of {len(parts)} classes: {run.facts['sampling']}"
        released, arguments = self._untrained(data)
        for label, (part, own_paid) in enumerate(zip(parts, paid, strict=True)):
            torch.manual_seed(part.seed)
            model, average = self._build(data).to(run.device), self._build(data).to(run.device)
            average.load_state_dict(model.state_dict())
            training.train(model, average, _of_class(data, label), part, own_paid)
            released.by_task[label].load_state_dict(average.decoder.state_dict())
        return Synthesizer(
            model="by-task",
            arguments=arguments,
            module=released.to(run.device).eval(),
            class_names=data.class_names,
            shape=data.shape,
        )

    def _arguments(self, data: TrainingData) -> dict[str, Any]:
        return {
            "shape": list(data.shape),
            "num_classes": 0,
            "latent": self.latent,
            "hidden": self.hidden,
            "grain": self.grain,
        }

    def _build(self, data: TrainingData) -> VariationalAutoencoder:
        """The autoencoder of one class."""
        decoder = models.build(_DECODER, **self._arguments(data))
        assert isinstance(decoder, ConditionalDecoder)
        pixels = math.prod(coarse_shape(data.shape, self.grain))
        encoder = Encoder(pixels, 0, self.latent, self.hidden, grain=self.grain)
        return VariationalAutoencoder(encoder, decoder)

    def _untrained(self, data: TrainingData) -> tuple[ByTask, dict[str, Any]]:
        own = {"model": _DECODER, "arguments": self._arguments(data)}
        labels = range(data.num_classes)
        arguments = {"parts": [{**own, "classes": [label]} for label in labels]}
        module = models.build("by-task", **arguments)
        assert isinstance(module, ByTask)
        return module, arguments

    def _query(self, data: TrainingData, run: Run) -> PoissonGradients:
        # How many records a class has is private: an even share of all is planned with.
        records, batch = max(1, round(data.num_records / data.num_classes)), self.batch_size
        query = gradients_at_noise(
            "vaegm",
            num_records=records,
            batch_size=batch,
            steps=steps_of_epochs(self.epochs, num_records=records, batch_size=batch),
            clip_norm=self.clip_norm,
        )
        return run.at_noise(query)


def _of_class(data: TrainingData, label: int) -> Images:
    """The records of one class, which is all that its autoencoder may be given."""
    own = data.private[(data.private.labels == label).nonzero().flatten()]
    return Images(own.pixels, torch.zeros_like(own.labels), own.ids)
