"""DP-VAE: a variational autoencoder trained on noisy gradients; only its decoder is released.

After seed 0's MLP-VAE (784-400-20), with the leak of its class statistics closed (privacy.md 5.4):
`conditional` gives the decoder the label, which costs nothing; `noisy-statistics` releases mean,
second moment and count of each class's latents in one noisy sum. Private data are touched in
`noisy_gradient`, on Poisson batches, and in that one sum. Pixels are in [0, 1] with cross-entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from dpray import models
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.methods import register
from dpray.models.autoencoders import Encoder, VariationalAutoencoder
from dpray.models.generators import ClassDecoder, ConditionalDecoder
from dpray.privacy.mechanisms import noisy_slot_sums
from dpray.privacy.queries import (
    GaussianSum,
    PaidQuery,
    PoissonGradients,
    gradients_at_noise,
    steps_of_epochs,
)
from dpray.vae_training import VaeTraining, refuse_settings

_VARIANCE_FLOOR = 1e-3


@register("dp-vae")
@dataclass(frozen=True, kw_only=True)
class DPVae:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "decoder of a VAE trained on noisy clipped gradients"
    paper: ClassVar[str] = "PrivacyProject; Kingma and Welling 2014; Abadi et al. 2016"

    class_model: Literal["conditional", "noisy-statistics"] = "conditional"
    latent: int = 20
    hidden: int = 400
    kl_weight: float = 1.5
    label_scale: float = 5.0  # conditional only: of the one-hot label beside unit latents
    batch_size: int = 4096  # expected: batches are Poisson samples
    epochs: float = 60
    clip_norm: float = 1.0
    lr: float = 6e-3  # of Adam, at first; it falls to nothing over the steps
    averaging: float = 0.98  # decay of the average of the weights that is released
    # noisy-statistics only: of the one release of them. 10 costs epsilon 0.34 on its own.
    statistics_noise: float = 10.0
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        refuse_settings(self, whole=(), positive=("label_scale", "statistics_noise"))

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        torch.manual_seed(run.seed)
        model, average = self._build(data).to(run.device), self._build(data).to(run.device)
        average.load_state_dict(model.state_dict())
        training = VaeTraining.of(self)
        # Set once, from a release, after the training.
        statistics_of = ("decoder.means", "decoder.deviations")
        training.check(model, data.shape, data.num_classes, run, allowed_buffers=statistics_of)
        # Both are paid before either is asked; the gradients take what the statistics leave.
        statistics = self._pay_statistics(run)
        query = run.world.from_first(lambda: self._query(data, run))
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        training.train(
            model, average, data.private, run, paid, lambda: self._release(average.decoder, data)
        )
        decoder = average.decoder
        if statistics is not None:
            assert isinstance(decoder, ClassDecoder)
            self._set_statistics(average.encoder, decoder, data, run, statistics)
        return self._release(decoder.eval(), data)

    @property
    def can_be_looked_at(self) -> bool:
        """Statistics are of the encoder at its end: until then there is nothing to draw from."""
        return self.class_model == "conditional"

    def _release(self, decoder: nn.Module, data: TrainingData) -> Synthesizer:
        name = "conditional" if self.class_model == "conditional" else "class"
        return Synthesizer(
            model=f"{name}-decoder",
            arguments=self._arguments(data),
            module=decoder,
            class_names=data.class_names,
            shape=data.shape,
        )

    def _arguments(self, data: TrainingData) -> dict[str, object]:
        arguments = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "latent": self.latent,
            "hidden": self.hidden,
        }
        if self.class_model == "conditional":
            arguments["label_scale"] = self.label_scale
        return arguments

    def _build(self, data: TrainingData) -> VariationalAutoencoder:
        conditional = self.class_model == "conditional"
        kind = "conditional-decoder" if conditional else "class-decoder"
        decoder = models.build(kind, **self._arguments(data))
        assert isinstance(decoder, ConditionalDecoder | ClassDecoder)
        labels = data.num_classes if conditional else 0
        encoder = Encoder(math.prod(data.shape), labels, self.latent, self.hidden, self.label_scale)
        return VariationalAutoencoder(encoder, decoder)

    def _query(self, data: TrainingData, run: Run) -> PoissonGradients:
        records, batch = data.num_records, self.batch_size
        query = gradients_at_noise(
            "dp-vae",
            num_records=records,
            batch_size=batch,
            steps=steps_of_epochs(self.epochs, num_records=records, batch_size=batch),
            clip_norm=self.clip_norm,
        )
        return run.at_noise(query)

    def _pay_statistics(self, run: Run) -> PaidQuery[GaussianSum] | None:
        if self.class_model == "conditional":
            return None
        return run.ledger.pay(
            GaussianSum(name="class statistics", noise_multiplier=self.statistics_noise)
        )

    def _set_statistics(
        self,
        encoder: Encoder,
        decoder: ClassDecoder,
        data: TrainingData,
        run: Run,
        paid: PaidQuery[GaussianSum],
    ) -> None:
        """Mean and total spread of each class's latents, from one noisy sum (privacy.md 5.4).

        Guarantee: the encoder is released by DP training, so a record's vector (mean, second
        moment, 1), each part bounded by public constants and the whole of norm at most one,
        depends on that record alone; it goes to the slot of its class.
        """
        private, size = data.private, self.latent
        longest, largest = 2 * math.sqrt(size), 3 * math.sqrt(size)
        weight = 1 / math.sqrt(3)

        @torch.no_grad()
        def raw_vectors(rows: Tensor) -> Tensor:
            images = private.pixels[rows].to(run.device)
            mean, log_variance = encoder(images, private.labels[rows].to(run.device))
            second = mean.square() + log_variance.exp()
            one = torch.ones(len(rows), 1, device=run.device)
            return weight * torch.cat([_within(mean, longest), _within(second, largest), one], 1)

        sums = run.once(
            "statistics",
            lambda: noisy_slot_sums(
                raw_vectors,
                private.labels,
                num_slots=data.num_classes,
                dimension=2 * size + 1,
                paid=paid,
                key=run.key,
                world=run.world,
            ),
        )
        # A class counts for something, whatever the noise says: a tenth of an even share.
        least = max(0.1 * data.num_records / data.num_classes, 1.0)
        counts = (sums[:, -1:] / weight).clamp(min=least)
        means = longest * sums[:, :size] / weight / counts
        second = largest * sums[:, size:-1] / weight / counts
        deviations = (second - means.square()).clamp(min=_VARIANCE_FLOOR).sqrt()
        decoder.means.copy_(means)
        decoder.deviations.copy_(deviations)


def _within(vectors: Tensor, bound: float) -> Tensor:
    """In units of `bound`, and of norm at most one."""
    scaled = vectors / bound
    return scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1)
