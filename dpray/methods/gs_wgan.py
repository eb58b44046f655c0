"""GS-WGAN: a critic for every subset of the records, a generator that hears them through noise.

Chen, Orekondy and Fritz 2020, https://arxiv.org/abs/2006.08265. Records go to subsets by a keyed
hash of their id. A step draws subsets; the critic of each gives the gradient of its scores by a
batch of generated images, clipped as a whole, and the noisy mean is pulled back through the
generator. The paper clips image by image and takes each for a draw of its own: one draw gives away
as many vectors as there are images, which the event counts here (`clip=per-image`). Drawing
amplifies privacy only where no critic remembers the draws, which `critic_state` decides. Private
data are touched by the critics and in `noisy_subset_mean`, after everything is paid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dpray.checks import above_zero, at_least_one
from dpray.contract import Run, Synthesizer, refuse_one_class
from dpray.data.records import Images, TrainingData
from dpray.data.splits import partition
from dpray.errors import BadInput
from dpray.methods import register
from dpray.models.generators import coarse_shape, coarsened
from dpray.privacy.subset_queries import SubsetSums
from dpray.privacy.subset_sums import noisy_subset_mean
from dpray.stacks.contributions import Weights
from dpray.stacks.critics import NOISE_A_RECORD, CriticGoal, image_gradients
from dpray.stacks.reading import Chunks
from dpray.stacks.refresh import RefreshSettings, refresh
from dpray.stacks.stack import repeated
from dpray.stacks.states import STATES, Frozen, Latents, make_state, spaced
from dpray.stacks.subsets import Subsets
from dpray.stacks.teachers import share_by_teacher
from dpray.stacks.versions import EncoderVersions
from dpray.upstream import Follower, GeneratorKind, follow

_SALT = "gs-wgan subsets"


@register("gs-wgan")
@dataclass(frozen=True, kw_only=True)
class GSWgan:
    name: ClassVar[str]
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "generator moved by noisy image gradients of a critic for each subset"
    paper: ClassVar[str] = "Chen, Orekondy and Fritz 2020"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "laptop": {},
        # The published loop. Its critics remember draws; these are copies that do not.
        "paper": {
            "generator": "deconv",
            "grain": 1,
            "latent": 10,
            "hidden": 64,
            "critic": "dcgan",
            "critic_hidden": 64,
            "sampling": "one-of-k",
            "subsets_per_step": 1.0,
            "steps": 20_000,
            "num_images": 32,
            "warm_steps": 2000,
            "adapt_steps": 5,
            "warm_lr": 1e-4,
            "adapt_lr": 1e-4,
            "lr": 1e-4,
            "schedule": "constant",
            "averaging": 0.999,
        },
    }
    gpu_preset: ClassVar[str] = "paper"
    can_be_looked_at: ClassVar[bool] = True
    fans_out: ClassVar[bool] = True

    critics: int = 1000  # K: the number of subsets
    generator: GeneratorKind = "coarse"
    latent: int = 8
    hidden: int = 64  # units of the generator, or maps at the full size for deconv
    grain: int = 2  # pixels a side of what critics see: fewer to noise
    critic: Literal["mlp", "dcgan"] = "mlp"
    # Units of a critic, 0 for a straight line for each class; or maps of its first convolution.
    critic_hidden: int = 0
    penalty: float = 10.0  # weight of a critic's slope being other than 1
    num_fakes: int = 100  # public images that critics are taught against, at least
    warm_steps: int = 5  # of every critic before the first draw, against the first generator
    warm_lr: float = 1e-2
    sampling: Literal["poisson", "one-of-k", "all-subsets"] = "poisson"
    critic_state: Literal["ephemeral", "scheduled", "frozen", "selected"] = "ephemeral"
    subsets_per_step: float | None = None  # expected; by default a tenth of them
    steps: int | None = None  # by default 400, or 20,000 where one subset is drawn
    num_images: int = 30  # B: the generated images that a step asks about
    clip: Literal["joint", "per-image"] = "joint"
    clip_norm: float = 1.0  # of the gradient by all images together, or by each of them
    adapt_steps: int = 3  # ephemeral and selected: of a drawn critic, against the generator
    adapt_lr: float = 2e-2
    refreshes: int = 5  # scheduled: how often all critics are brought up to the generator
    refresh_steps: int = 10  # scheduled: of every critic then
    lr: float = 5e-3  # of Adam, at first
    schedule: Literal["linear", "constant"] = "linear"  # down to nothing, or not
    averaging: float = 0.98
    chunk: int = 50  # subsets in memory at once

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        if not 2 <= self.critics <= data.num_records:
            raise BadInput(
                f"{self.critics} critics for {data.num_records} records of {data.name}: each "
                "needs a subset of its own, so at least 2 and no more than there are records"
            )
        sizes = ("latent", "hidden", "num_fakes", "num_images", "chunk")
        at_least_one(self, *sizes, "steps", "adapt_steps", "refreshes", "refresh_steps")
        above_zero(self, "warm_lr", "clip_norm", "adapt_lr", "lr")
        if self.warm_steps < 0:
            raise BadInput(f"warm_steps {self.warm_steps} must be at least 0")
        if self.critic_hidden < (0 if self.critic == "mlp" else 1):
            raise BadInput(f"critic_hidden {self.critic_hidden} is too low for {self.critic!r}")
        if not 0 <= self.averaging < 1 or not 0 <= self.penalty < math.inf:
            raise BadInput("averaging must be at least 0 and below 1, penalty at least 0")
        if not 1 <= self.grain <= min(data.shape[1:]):
            raise BadInput(f"grain {self.grain} does not fit images of {tuple(data.shape[1:])}")
        self.query(1.0)  # refuses draws that do not fit together
        self._goal(data).build(0)  # and a critic that does not fit the images

    def share(self, data: TrainingData, rank: int, size: int) -> TrainingData:
        """Whole subsets, dealt out in turn: a subset's contribution is made by one rank."""
        return share_by_teacher(data, rank, size, num_teachers=self.critics, salt=_SALT)

    def query(self, noise_multiplier: float) -> SubsetSums:
        """What the steps ask, at noise in units of the clip; the paper's unit is twice the clip."""
        usual = {
            "poisson": (max(1.0, self.critics / 10), 400),
            "one-of-k": (1.0, 20_000),
            "all-subsets": (float(self.critics), 60),
        }
        usual_number, usual_steps = usual[self.sampling]
        number = usual_number if self.subsets_per_step is None else self.subsets_per_step
        return SubsetSums(
            name="gs-wgan",
            num_subsets=self.critics,
            sampling=self.sampling,
            subsets_per_step=number,
            steps=usual_steps if self.steps is None else self.steps,
            clip_norm=self.clip_norm,
            noise_multiplier=noise_multiplier,
            remembers_draws=STATES[self.critic_state].remembers_draws,
            vectors_per_draw=self.num_images if self.clip == "per-image" else 1,
        )

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        network = (self.generator, self.latent, self.hidden, self.grain)
        follower = Follower(*network, self.lr, self.schedule, self.averaging)
        generator, release = follower.build(data, run)
        query = run.world.from_first(lambda: run.at_noise(self.query))
        paid = run.ledger.pay(query)  # from here on private data may be read
        run.facts.update(query.facts())
        private, classes = data.private, data.num_classes
        coarse = Images(coarsened(private.pixels, self.grain), private.labels, private.ids)
        subsets = Subsets(coarse, partition(private.ids, self.critics, _SALT), self.critics)
        faced = torch.arange(classes).repeat(-(-self.num_fakes // classes))

        @torch.no_grad()
        def fakes(step: int) -> Weights:
            """What critics are taught against before a step: public."""
            return {"images": follower.images(generator, faced, run.generator(f"fakes {step}"))}

        goal, latents = self._goal(data), Latents(run.key, NOISE_A_RECORD, run.device)
        objective = goal.objective(run.device)
        state = self._state(goal, subsets, latents, run, fakes(0), data.fingerprint)
        chunks = Chunks(query, subsets, state, latents, run.key, self.chunk)
        labels = torch.arange(self.num_images) % classes

        def noisy_gradient(step: int, images: Tensor) -> Tensor:
            public = fakes(step)
            state.before(step, public)

            def contributions(drawn: Tensor) -> Iterator[Tensor]:
                for part in chunks.of(step):
                    own = state.at_use(part.numbers, part.encoders, part.batch, public, step)
                    yield image_gradients(objective, own, images, labels.to(run.device))

            return noisy_subset_mean(
                contributions,
                subsets.present,
                step,
                dimension=images.numel(),
                paid=paid,
                key=run.key,
                world=run.world,
                device=run.device,
                vectors=query.vectors_per_draw,
            )

        follow(
            generator,
            release,
            noisy_gradient,
            labels,
            follower,
            run,
            name=self.name,
            steps=query.steps,
            state=state,
        )
        run.world.barrier()
        state.versions.remove()
        return release

    def _goal(self, data: TrainingData) -> CriticGoal:
        shape = coarse_shape(data.shape, self.grain)
        return CriticGoal(self.critic, shape, data.num_classes, self.critic_hidden, self.penalty)

    def _state(
        self,
        goal: CriticGoal,
        subsets: Subsets,
        latents: Latents,
        run: Run,
        public: Weights,
        fingerprint: str,
    ) -> Frozen:
        """The critics, warmed up where they are missing, in the state in which steps use them."""
        made_by = goal.digest(fingerprint, str(run.seed), json.dumps(asdict(self)))
        versions = EncoderVersions(
            run.workdir / "critics", made_by=made_by, say=run.checkpoints.say, holds="critics"
        )
        kept = run.checkpoints.latest("train", ledger_heads=run.ledger.heads)
        # Critics that changed since cannot be made again from their start.
        if kept is None or not STATES[self.critic_state].changes_encoders:
            first = goal.build(run.seed)
            warming = self._teaching(goal, run, self.warm_steps, self.warm_lr)
            start = lambda numbers: repeated(first, len(numbers))  # noqa: E731
            refresh(subsets, versions, run.pool, public, 0, latents, warming, start=start)
        return make_state(
            self.critic_state,
            versions,
            subsets,
            latents,
            run.pool,
            adapting=self._teaching(goal, run, self.adapt_steps, self.adapt_lr),
            refreshing=self._teaching(goal, run, self.refresh_steps, self.adapt_lr),
            every=spaced(self.query(1.0).steps, self.refreshes),
        )

    def _teaching(self, goal: CriticGoal, run: Run, steps: int, lr: float) -> RefreshSettings:
        return RefreshSettings(goal, steps, lr, self.chunk, run.device.type)
