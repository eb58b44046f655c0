"""DP2-VAE: an encoder for every subset of the records, one decoder trained on noisy gradients.

After Jiang et al. 2022 (arXiv 2208.03409). Records go to subsets by a keyed hash of their id. Stage
1 trains an encoder for each subset. Stage 2 trains a fresh decoder on noisy sums of subset
gradients, each clipped as a whole, and releases that alone. Drawing subsets amplifies privacy only
where no encoder remembers the draws: `encoder_state` decides that, and the event follows from it.
Private data are touched by the encoders and in `noisy_subset_mean`, after everything is paid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.checks import above_zero, at_least_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import TrainingData
from dpray.data.splits import partition
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.generators import Shape, coarse_shape
from dpray.privacy.queries import PaidQuery
from dpray.privacy.subset_queries import SubsetSums
from dpray.privacy.subset_sums import noisy_subset_mean
from dpray.stacks.contributions import Objective, decoder_gradients
from dpray.stacks.encoders import pretrain
from dpray.stacks.reading import Chunks
from dpray.stacks.recipes import EncoderSettings, Recipe, conv_recipe, mlp_recipe
from dpray.stacks.refresh import RefreshSettings, VaeGoal
from dpray.stacks.states import STATES, Frozen, Latents, make_state, spaced
from dpray.stacks.subsets import Subsets
from dpray.stacks.versions import EncoderVersions

_SALT = "dp2-vae subsets"
_QUERY = "dp2-vae"
T = TypeVar("T")


@register("dp2-vae")
@dataclass(frozen=True, kw_only=True)
class DP2Vae:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "decoder trained on noisy gradients of subsets, an encoder for each"
    paper: ClassVar[str] = "Jiang et al. 2022"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # The paper's networks, 16 GB of encoders. It states neither steps nor learning rates.
        "paper": {"network": "conv", "hidden": 512, "pretrain_lr": 1e-3, "lr": 1e-3},
    }
    gpu_preset: ClassVar[str] = "paper"
    can_be_looked_at: ClassVar[bool] = True
    fans_out: ClassVar[bool] = True

    encoders: int = 2500  # K: the number of subsets
    network: Literal["mlp", "conv"] = "mlp"
    latent: int | None = None  # by default 8, for images over 32 pixels a side 16, as in the paper
    hidden: int = 64  # units of the decoder, or channels of the widest convolution
    encoder_hidden: int = 32  # mlp: units of an encoder
    grain: int = 2  # mlp: pixels a side of what encoders see and decoders give: less to noise
    label_scale: float = 5.0  # mlp: of the one-hot label beside unit latents
    kl_weight: float = 1.5
    # Stage 1. Without steps the encoders stay as they were initialised.
    pretrain_steps: int = 100
    pretrain_lr: float = 4e-3
    pretrain_clip: float = 1.0
    subset_batch: int = 64  # records of a subset a step; a subset with fewer is taken whole
    # All encoders start from the same public weights, and the decoder from those of their
    # decoders: so their latents mean the same. The paper does not say.
    shared_start: bool = True
    # Stage 2
    sampling: Literal["poisson", "one-of-k", "all-subsets"] = "poisson"
    encoder_state: Literal["ephemeral", "scheduled", "frozen", "selected"] = "ephemeral"
    subsets_per_step: float | None = None  # expected; by default a tenth of them
    steps: int | None = None
    clip_norm: float = 1.0  # of the contribution of a whole subset
    lr: float = 1e-2  # of Adam, at first; it falls to nothing over the steps
    averaging: float = 0.98
    adapt_steps: int = 1  # ephemeral and selected: of a drawn encoder, against the decoder
    adapt_lr: float = 2e-3
    refreshes: int = 5  # scheduled: how often all encoders are brought up to the decoder
    refresh_steps: int = 10  # scheduled: of every encoder then
    chunk: int = 50  # subsets in memory at once

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        if not 2 <= self.encoders <= data.num_records:
            raise BadInput(
                f"{self.encoders} encoders for {data.num_records} records of {data.name}: each "
                "needs a subset of its own, so at least 2 and no more than there are records"
            )
        sizes = ("hidden", "encoder_hidden", "grain", "subset_batch", "chunk")
        at_least_one(self, *sizes, "adapt_steps", "refreshes", "refresh_steps")
        above = ("label_scale", "pretrain_lr", "pretrain_clip", "clip_norm", "lr", "adapt_lr")
        above_zero(self, *above)
        at_least_one(self, "latent")
        if self.pretrain_steps < 0 or (self.steps is not None and self.steps < 1):
            raise BadInput("pretrain_steps must be at least 0, and steps at least 1")
        if not 0 <= self.averaging < 1 or not 0 <= self.kl_weight < math.inf:
            raise BadInput("averaging must be at least 0 and below 1, kl_weight at least 0")
        self.query(1.0)  # refuses draws that do not fit together
        self._recipe(data).build(0)  # and a network that does not fit the images

    def share(self, data: TrainingData, rank: int, size: int) -> TrainingData:
        """Whole subsets, dealt out in turn: a subset's contribution is made by one rank."""
        if size == 1:
            return data
        mine = partition(data.private.ids, self.encoders, _SALT) % size == rank
        return replace(data, private=data.private[mine])

    def query(self, noise_multiplier: float) -> SubsetSums:
        """What stage 2 asks, at a noise level. Which event that is, the encoders' state says."""
        usual = {
            "poisson": (max(1.0, self.encoders / 10), 300),
            "one-of-k": (1, 20_000),
            "all-subsets": (self.encoders, 60),
        }
        subsets_per_step, steps = usual[self.sampling]
        return SubsetSums(
            name=_QUERY,
            num_subsets=self.encoders,
            sampling=self.sampling,
            subsets_per_step=_given(self.subsets_per_step, subsets_per_step),
            steps=_given(self.steps, steps),
            clip_norm=self.clip_norm,
            noise_multiplier=noise_multiplier,
            remembers_draws=STATES[self.encoder_state].remembers_draws,
            vectors_per_draw=1,
        )

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        recipe = self._recipe(data)
        query = run.world.from_first(lambda: run.at_noise(self.query))
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        subsets = Subsets(
            data.private, partition(data.private.ids, self.encoders, _SALT), self.encoders
        )
        # Fresh, but from the public weights that all decoders of stage 1 started from.
        decoder, average = (recipe.build(run.seed).decoder.to(run.device) for _ in range(2))
        release = Synthesizer(
            model=recipe.decoder,
            arguments=recipe.decoder_arguments,
            module=average.eval(),
            class_names=data.class_names,
            shape=data.shape,
        )
        self._train(decoder, release, data, subsets, recipe, run, paid)
        return release

    def _recipe(self, data: TrainingData) -> Recipe:
        small = max(data.shape[1:]) <= 32
        latent = _given(self.latent, 8 if small else 16)
        if self.network == "mlp":
            return self._mlp(data, data.shape, latent, self.grain)
        # Two convolutions for small images, three for larger ones.
        channels = [max(1, self.hidden >> i) for i in range(2 if small else 3)]
        return conv_recipe(data.shape, data.num_classes, latent, channels)

    def _mlp(self, data: TrainingData, shape: Shape, latent: int, grain: int) -> Recipe:
        return mlp_recipe(
            shape,
            data.num_classes,
            latent,
            self.hidden,
            self.label_scale,
            grain,
            self.encoder_hidden,
        )

    def _train(
        self,
        decoder: nn.Module,
        release: Synthesizer,
        data: TrainingData,
        subsets: Subsets,
        recipe: Recipe,
        run: Run,
        paid: PaidQuery[SubsetSums],
    ) -> None:
        query, average = paid.query, release.module
        optimizer = torch.optim.Adam(decoder.parameters(), lr=self.lr)
        modules = {"decoder": decoder, "average": average}
        checkpoint = run.checkpoints.latest("train", ledger_heads=run.ledger.heads)
        first = 0
        if checkpoint is not None:
            unpack(checkpoint.tensors, modules, optimizer)
            first = checkpoint.step

        def save(step: int) -> None:
            tensors = pack(modules, optimizer)
            run.checkpoints.save("train", Checkpoint(step, tensors, run.ledger.head))

        latents = Latents(run.key, recipe.latent, run.device)
        state = self._stage_one(data, subsets, recipe, latents, run, query.steps - first)
        state.start(first)
        run.world.barrier()  # nobody writes while another still clears away
        chunks = Chunks(query, subsets, state, latents, run.key, self.chunk)
        objective = Objective(recipe.build(run.seed).to(run.device), self.kl_weight)
        # Views: the optimiser moves what they show.
        weights = {name: p.detach() for name, p in decoder.named_parameters()}
        with run.progress("decoder", query.steps) as bar:
            bar.advance(first)
            bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
            for step in range(first, query.steps):
                state.before(step, weights)

                def contributions(drawn: Tensor, step: int = step) -> Iterator[Tensor]:
                    for part in chunks.of(step):
                        encoders = state.at_use(
                            part.numbers, part.encoders, part.batch, weights, step
                        )
                        yield decoder_gradients(
                            objective, encoders, weights, part.batch, part.noise
                        )

                noisy_mean = noisy_subset_mean(
                    contributions,
                    subsets.present,
                    step,
                    dimension=sum(p.numel() for p in decoder.parameters()),
                    paid=paid,
                    key=run.key,
                    world=run.world,
                    device=run.device,
                )
                _set_gradient(decoder, noisy_mean)
                # Down to nothing: late steps hold as much noise as early ones and less news.
                optimizer.param_groups[0]["lr"] = self.lr * (1 - step / query.steps)
                optimizer.step()
                move_average(average, decoder, step, self.averaging)
                bar.advance()
                run.look(step + 1, query.steps, lambda: release)
                # Every rank keeps its own encoders beside the one checkpoint.
                if run.world.from_first(run.checkpoints.due):
                    state.keep(step + 1)
                    run.world.barrier()  # a checkpoint counts once every rank kept its encoders
                    save(step + 1)
                    state.kept(step + 1)
        save(query.steps)  # whatever the time: now the encoders go
        run.world.barrier()
        state.versions.remove()

    def _stage_one(
        self,
        data: TrainingData,
        subsets: Subsets,
        recipe: Recipe,
        latents: Latents,
        run: Run,
        steps_left: int,
    ) -> Frozen:
        """The encoders, trained where they are missing, in the state in which stage 2 uses them."""
        settings = self._encoder_settings(data, recipe, run)
        versions = EncoderVersions(
            run.workdir / "encoders",
            made_by=settings.digest(data.fingerprint),
            say=run.checkpoints.say,
        )
        steps = self.query(1.0).steps
        # Encoders that changed since cannot be made again from their start.
        changed = STATES[self.encoder_state].changes_encoders and steps_left < steps
        if steps_left and not changed:
            pretrain(
                subsets,
                versions.at(0),
                run.pool,
                settings,
                numbers=torch.arange(run.world.rank, self.encoders, run.world.size),
                records=math.ceil(data.num_records / self.encoders),
                progress=run.progress,
            )

        def teaching(steps: int) -> RefreshSettings:
            goal = VaeGoal(recipe, self.kl_weight)
            return RefreshSettings(goal, steps, self.adapt_lr, self.chunk, run.device.type)

        return make_state(
            self.encoder_state,
            versions,
            subsets,
            latents,
            run.pool,
            adapting=teaching(self.adapt_steps),
            refreshing=teaching(self.refresh_steps),
            every=spaced(steps, self.refreshes),
        )

    def _encoder_settings(self, data: TrainingData, recipe: Recipe, run: Run) -> EncoderSettings:
        """Stage 1. An encoder that sees coarse images is trained to give back coarse ones.

        Its weights, and those of its decoder, are the same in number and at the start; a coarse
        image has fewer values to be right about, so the divergence counts for as much less.
        """
        grain = self.grain if self.network == "mlp" else 1
        if grain > 1:
            recipe = self._mlp(data, coarse_shape(data.shape, grain), recipe.latent, 1)
        return EncoderSettings(
            recipe=recipe,
            grain=grain,
            steps=self.pretrain_steps,
            seed=run.seed,
            lr=self.pretrain_lr,
            clip_norm=self.pretrain_clip,
            kl_weight=self.kl_weight / grain**2,
            batch_size=self.subset_batch,
            shared_start=self.shared_start,
            device=run.device.type,
        )


def _given(value: T | None, usual: T) -> T:
    return usual if value is None else value


def _set_gradient(module: nn.Module, noisy_mean: Tensor) -> None:
    params = list(module.parameters())
    for p, piece in zip(params, noisy_mean.split([p.numel() for p in params]), strict=True):
        p.grad = piece.view(p.shape).to(device=p.device, dtype=p.dtype)
