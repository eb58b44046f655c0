"""DP-kVAE: noisy k-means in a feature space, then a VAE that knows the clusters.

Acs, Melis, Castelluccia and De Cristofaro (2018), https://arxiv.org/abs/1709.04514. Private data
are touched by a few noisy sums of random Fourier features of norm one (their mean, the steps of
k-means, and last a count of every class in every cluster) and in `noisy_gradient`, on Poisson
batches. All of it is paid for before the first sum. Which cluster a record is in depends on that
record and on released centres alone.

The paper trains a VAE for each cluster. Here one VAE is told the cluster, and the class. At the
same sample rate and steps both cost the same, for clusters are disjoint; but a VAE of its own
would hear its own cluster alone, under the same noise: k times fainter. One VAE also rests on no
condition on how records are cut, and gives labels.
Shapes: N records, F frequencies (2F features), K clusters, S classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpray import models
from dpray.clustering import Clustering, clustering_queries
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import Images, TrainingData
from dpray.embeddings import random_embedding
from dpray.methods import register
from dpray.models.autoencoders import VariationalAutoencoder
from dpray.models.clusters import CellDecoder, CellEncoder
from dpray.privacy.mechanisms import noisy_slot_sums
from dpray.privacy.queries import (
    GaussianSum,
    PaidQuery,
    PoissonGradients,
    gradients_at_noise,
    steps_of_epochs,
)
from dpray.vae_training import VaeTraining, refuse_settings

_MODEL = "cell-decoder"


@register("dp-kvae")
@dataclass(frozen=True, kw_only=True)
class DPKVae:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "noisy k-means, then a VAE told cluster and class"
    paper: ClassVar[str] = "Acs et al. 2018"
    can_be_looked_at: ClassVar[bool] = True
    # The paper states no sizes that could be found: more clusters, and a training of 3,000 steps.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        "paper": {"clusters": 20, "epochs": 205.0, "lr": 2e-3},
    }
    gpu_preset: ClassVar[str] = "paper"

    clusters: int = 10
    iterations: int = 4  # of k-means, each one noisy sum
    # How the budget is split: the noise multiplier of every sum that the clustering asks for is
    # this many times that of the gradients. Of epsilon 10 on MNIST the sums alone would cost 1.5,
    # and the gradients alone 9.8.
    clustering_noise: float = 5.0
    frequencies: int = 100  # two features each
    bandwidth: float = 0.135  # squared width of the kernel per pixel: a constant, of no data
    latent: int = 20
    hidden: int = 400
    kl_weight: float = 1.5
    label_scale: float = 5.0  # of the one-hot class and cluster beside unit latents
    batch_size: int = 4096  # expected: batches are Poisson samples
    epochs: float = 60
    clip_norm: float = 1.0
    lr: float = 6e-3  # of Adam, at first; it falls to nothing over the steps
    averaging: float = 0.98  # decay of the average of the weights that is released
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        refuse_settings(
            self,
            whole=("clusters", "iterations", "frequencies"),
            positive=("clustering_noise", "bandwidth", "label_scale"),
        )

    def queries(self, noise: float, num_records: int) -> list[GaussianSum | PoissonGradients]:
        """All that is asked, at this noise of the gradients, which come last."""
        wide = noise * self.clustering_noise
        gradients = gradients_at_noise(
            "dp-kvae",
            num_records=num_records,
            batch_size=self.batch_size,
            steps=steps_of_epochs(self.epochs, num_records=num_records, batch_size=self.batch_size),
            clip_norm=self.clip_norm,
        )
        return [
            *clustering_queries(self.iterations, wide),
            GaussianSum(name="cell counts", noise_multiplier=wide),
            gradients(noise),
        ]

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        torch.manual_seed(run.seed)
        model, average = self._build(data).to(run.device), self._build(data).to(run.device)
        average.load_state_dict(model.state_dict())
        training = VaeTraining.of(self)
        cells = data.num_classes * self.clusters
        training.check(model, data.shape, cells, run, allowed_buffers=("decoder.shares",))
        queries = self._queries(data, run)
        paid: list[PaidQuery[Any]] = [run.ledger.pay(query) for query in queries]
        *sums, gradients = paid  # from here on private data may be read
        run.facts.update(gradients.query.facts())
        run.facts["sampling"] = (
            f"every record in {len(sums)} sums for the clustering; then {run.facts['sampling']}"
        )
        records = self._clustered(data, run, sums, [model.decoder, average.decoder])

        def so_far() -> Synthesizer:
            return Synthesizer(
                model=_MODEL,
                arguments=self._arguments(data),
                module=average.decoder.eval(),
                class_names=data.class_names,
                shape=data.shape,
            )

        training.train(model, average, records, run, gradients, so_far)
        return so_far()

    def _queries(self, data: TrainingData, run: Run) -> list[GaussianSum | PoissonGradients]:
        def at_noise(noise: float) -> list[GaussianSum | PoissonGradients]:
            return self.queries(noise, data.num_records)

        if run.noise_multiplier is not None:
            return at_noise(run.noise_multiplier)
        return run.world.from_first(lambda: run.ledger.calibrate_together(at_noise))

    def _arguments(self, data: TrainingData) -> dict[str, Any]:
        return {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "num_clusters": self.clusters,
            "latent": self.latent,
            "hidden": self.hidden,
            "label_scale": self.label_scale,
        }

    def _build(self, data: TrainingData) -> VariationalAutoencoder:
        decoder = models.build(_MODEL, **self._arguments(data))
        assert isinstance(decoder, CellDecoder)
        encoder = CellEncoder(
            math.prod(data.shape),
            data.num_classes,
            self.clusters,
            self.latent,
            self.hidden,
            self.label_scale,
        )
        return VariationalAutoencoder(encoder, decoder)

    def _clustered(
        self,
        data: TrainingData,
        run: Run,
        paid: Sequence[PaidQuery[Any]],
        decoders: Sequence[CellDecoder],
    ) -> Images:
        """The records, each with its cell for a label; `decoders` are told how often each is."""
        private = data.private
        embed = random_embedding(data.shape, self.frequencies, self.bandwidth, run)
        clustering = Clustering(private.pixels, embed, data.num_records, run)
        *for_centres, for_counts = paid
        with run.progress("k-means", len(paid)) as bar:
            nearest = clustering.nearest(clustering.centres(self.clusters, for_centres, bar))
            cells = private.labels * self.clusters + nearest
            shares = _shares(cells, data.num_classes, self.clusters, run, for_counts)
            bar.advance()
        for decoder in decoders:
            decoder.shares.copy_(shares)
        return Images(private.pixels, cells, private.ids)


def _shares(
    cells: Tensor, num_classes: int, clusters: int, run: Run, paid: PaidQuery[GaussianSum]
) -> Tensor:
    """(S, K): of every class the noisy share that is in each cluster."""
    num_cells = num_classes * clusters

    def release() -> Tensor:
        return noisy_slot_sums(
            lambda rows: torch.ones(len(rows), 1),
            cells,
            num_slots=num_cells,
            dimension=1,
            paid=paid,
            key=run.key,
            world=run.world,
        )

    counts = run.once("cell-counts", release).reshape(num_classes, clusters).clamp(min=0)
    # Where noise left nothing of a class, all its clusters are alike.
    counts = torch.where(counts.sum(1, keepdim=True) > 0, counts, 1.0)
    return (counts / counts.sum(1, keepdim=True)).float()
