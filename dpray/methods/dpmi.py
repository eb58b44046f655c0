"""DPMI: a public model turns private images into latents, a private learner learns those.

Model inversion after Chen et al., https://arxiv.org/abs/2201.03139, in the six combinations of
csc2412_project: public GAN or autoencoder; latents by gradient or encoder; DP-GAN or VaeGM. A new
latent is drawn from the learner and decoded by the public model. Private data are touched twice:
latents are taken record by record, which releases nothing, and `noisy_gradient` learns from them.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from dpray import models
from dpray.checks import above_zero, at_least_one
from dpray.contract import Run, Synthesizer, public_of, refuse_one_class
from dpray.data.records import PublicData, TrainingData
from dpray.errors import BadInput
from dpray.features import private_features
from dpray.inversion.extraction import Extraction, latent_extractor
from dpray.inversion.learners import GanLearner, Units, VaeLearner
from dpray.inversion.public_models import PublicModel
from dpray.inversion.public_side import public_side
from dpray.inversion.recipes import PublicRecipe
from dpray.methods import register
from dpray.models.latent_models import Activation, LatentHistory, LatentSynthesizer
from dpray.plain_classifier import fitting_head
from dpray.privacy.parts import of_classes
from dpray.privacy.queries import PoissonGradients, gradients_at_noise, steps_of_epochs

Combo = Literal["wgan-gan", "wgan-vae", "ae-enc-gan", "ae-enc-vae", "ae-grad-gan", "ae-grad-vae"]
_MODEL = "latent-synthesizer"


@register("dpmi")
@dataclass(frozen=True, kw_only=True)
class Dpmi:
    private: ClassVar[bool] = True
    summary: ClassVar[str] = "a private learner over latents of a public GAN or autoencoder"
    paper: ClassVar[str] = "csc2412_project; Chen et al. 2022 (model inversion)"
    public_data: ClassVar[Literal["classes", "labelling"]] = "classes"
    fans_out: ClassVar[bool] = True

    combo: Combo = "ae-grad-vae"  # public model, extraction, private learner
    # single: one learner that knows no labels, its images sorted by a public classifier;
    # per-class: one learner for each class, on disjoint records; conditional: one, told the label.
    classes: Literal["single", "per-class", "conditional"] = "conditional"

    public_network: Literal["fc", "conv"] = "fc"
    public_loss: Literal["wgan", "wgan-gp"] = "wgan-gp"  # of the public GAN
    public_latent: int = 100
    public_steps: int | None = None  # none: as the kind of model needs
    ascent_steps: int = 200  # of the extraction by gradient, the same for every record
    ascent_lr: float | None = None  # none: what suits a plain or a projected ascent
    ascent_starts: int = 1  # public draws; a record keeps its own best
    scale: Literal["diagonal", "whitened"] = "diagonal"  # by latents of public records

    noise: int = 32  # dimensions the learner draws from
    hidden: int = 64
    activation: Activation = "leaky-relu"
    label_scale: float = 6.0  # conditional only: of the one-hot label beside unit noise
    batch_size: int = 1024  # expected: batches are Poisson samples
    epochs: float = 40
    steps: int | None = None  # instead of epochs
    clip_norm: float = 0.5
    averaging: float = 0.98
    # VaeGM
    kl_weight: float = 1.0  # of an evidence bound of unit variance, on scaled latents
    lr: float = 1e-2  # of Adam, at first; it falls to nothing over the steps
    # DP-GAN
    gan_loss: Literal["wgan", "bce"] = "bce"
    critic_hidden: int = 128
    generator_hidden: int = 128
    critic_steps: int = 2  # for each of the generator: only these cost
    num_fakes: int = 512
    lr_critic: float = 4e-3
    lr_generator: float = 2e-3
    weight_clip: float = 0.05  # of a wgan critic
    snapshots: int = 0  # of the learner on its way, kept in the release
    micro_batch: int = 512  # examples in memory at once; does not change the result

    def recipe(self) -> PublicRecipe:
        kind: Literal["autoencoder", "gan"] = "gan" if self._public == "wgan" else "autoencoder"
        return PublicRecipe(
            kind=kind,
            network=self.public_network,
            loss=self.public_loss,
            latent=self.public_latent,
            steps=self.public_steps,
        )

    def extraction(self) -> Extraction:
        if self.combo.startswith("ae-enc"):
            return Extraction(kind="encoder")
        return Extraction(
            kind="projected" if self._public == "wgan" else "gradient",
            steps=self.ascent_steps,
            lr=self.ascent_lr,
            starts=self.ascent_starts,
            # From one point that all records share their latents stay close to each other where
            # they may; a GAN's ball has to have a surface to start from.
            start="normal" if self._public == "wgan" or self.ascent_starts > 1 else "zero",
        )

    def learner(self) -> VaeLearner | GanLearner:
        if self.combo.endswith("vae"):
            return VaeLearner(
                hidden=self.hidden,
                activation=self.activation,
                kl_weight=self.kl_weight,
                lr=self.lr,
                averaging=self.averaging,
                micro_batch=self.micro_batch,
            )
        return GanLearner(
            loss=self.gan_loss,
            hidden=self.critic_hidden,
            critic_steps=self.critic_steps,
            num_fakes=self.num_fakes,
            lr_critic=self.lr_critic,
            lr_generator=self.lr_generator,
            weight_clip=self.weight_clip,
            averaging=self.averaging,
            label_scale=self.label_scale,
            micro_batch=self.micro_batch,
        )

    @property
    def _public(self) -> str:
        return self.combo.partition("-")[0]

    def check(self, data: TrainingData) -> None:
        refuse_one_class(data)
        public = public_of(data, "dpmi")
        if self.classes == "single" and public.labelling is None:
            raise BadInput(
                "classes=single needs labelled records that are declared public: name a dataset "
                "with a labelling third set aside, such as mnist:0,2,4,6,8@rest"
            )
        whole = (
            "public_latent",
            "ascent_starts",
            "noise",
            "hidden",
            "critic_hidden",
            "generator_hidden",
        )
        at_least_one(self, *whole, "batch_size", "critic_steps", "num_fakes", "micro_batch")
        at_least_one(self, "steps")
        if min(self.snapshots, self.ascent_steps) < 0:
            raise BadInput("snapshots and ascent_steps must be at least 0")
        positive = ("label_scale", "epochs", "clip_norm", "lr", "lr_critic")
        above_zero(self, *positive, "lr_generator", "weight_clip")
        if not 0 <= self.averaging < 1 or not 0 <= self.kl_weight < math.inf:
            raise BadInput("averaging must be at least 0 and below 1, kl_weight at least 0")
        self.recipe()
        self.extraction()
        steps = self._plan(data)[1]
        if self.combo.endswith("gan") and steps < self.critic_steps:
            raise BadInput(
                f"critic_steps {self.critic_steps} are more than all {steps} steps: the generator "
                "would never move; lower them, or raise epochs"
            )

    def fit(self, data: TrainingData, run: Run) -> Synthesizer:
        public, extraction = public_of(data, "dpmi"), self.extraction()
        parts = self._parts(data, run)  # first of all, for it may refuse
        labelled = data.num_classes if self.classes == "single" else None
        side = public_side(self.recipe(), extraction, self.scale, public, run, labelled=labelled)
        model, scale = side.model, side.scale
        torch.manual_seed(run.seed)
        released, arguments = self._untrained(model, data)
        released = released.to(run.device)
        learner = self.learner()
        first = copy.deepcopy(released.learners[0]).cpu()
        learner.check(first, self.public_latent, run)  # type: ignore[arg-type]
        if side.labeller is not None and released.labeller is not None:
            released.labeller.load_state_dict(side.labeller.state_dict())

        query = run.world.from_first(lambda: self._query(data, parts[0]))
        paid = [part.ledger.pay(query) for part in parts]  # private data may be read now
        run.facts.update(query.facts())
        run.facts["declared"] = self._declared(public)
        if len(parts) > 1:
            run.facts["sampling"] = f"within each of {len(parts)} classes: {run.facts['sampling']}"
        kind = f"latents/{model.digest}/{extraction.digest()}"
        extractor = latent_extractor(model.module, extraction)
        latents = private_features(data, extractor, kind, run, fan_out=True, label="inversion")
        units = scale.to_unit(latents.float())
        released.mean.copy_(scale.mean)
        released.matrix.copy_(scale.back)
        release = Synthesizer(
            model=_MODEL,
            arguments=arguments,
            module=released,
            class_names=data.class_names,
            shape=data.shape,
        )
        for place, (part, own_paid) in enumerate(zip(parts, paid, strict=True)):
            own = self._units(units, data, place)
            history = released.histories[place] if self.snapshots else LatentHistory(0, {})
            watched = _Watched(history, release, part)  # type: ignore[arg-type]
            trained = learner.fit(released.learners[place], watched, own, part, own_paid)  # type: ignore[arg-type]
            released.learners[place].load_state_dict(trained.state_dict())
        released.eval()
        return release

    @property
    def can_be_looked_at(self) -> bool:
        """Learners of a class each come one after the other: half of them make no score."""
        return self.classes != "per-class"

    def _declared(self, public: PublicData) -> dict[str, str]:
        """What a card says is inside the release without any noise."""
        inside = f"the public model, trained on {public.name}"
        if self.classes == "single":
            inside += ", and a classifier trained on the labelling records"
        return {"inside the release": inside}

    def _untrained(
        self, model: PublicModel, data: TrainingData
    ) -> tuple[LatentSynthesizer, dict[str, object]]:
        conditional = self.classes == "conditional"
        arguments: dict[str, object] = {
            "public": model.as_json(data.shape),
            "decoder": {
                "size": self.public_latent,
                "num_classes": data.num_classes if conditional else 0,
                "noise": self.noise,
                "hidden": self.hidden if self.combo.endswith("vae") else self.generator_hidden,
                "activation": self.activation,
                "label_scale": self.label_scale,
            },
            "num_learners": data.num_classes if self.classes == "per-class" else 1,
            "num_snapshots": self.snapshots,
        }
        if self.classes == "single":
            arguments["labeller"] = {
                "model": "image-classifier",
                "arguments": {
                    "model": fitting_head(data.shape),
                    "features": "pixels",
                    "shape": list(data.shape),
                    "num_classes": data.num_classes,
                },
            }
        module = models.build(_MODEL, **arguments)
        assert isinstance(module, LatentSynthesizer)
        module.public_model.load_state_dict(model.module.state_dict())
        return module, arguments

    def _parts(self, data: TrainingData, run: Run) -> list[Run]:
        """The run, or one part of it for each class, which reads the records of that class."""
        if self.classes != "per-class":
            return [run]
        numbers = data.numbers_of(range(data.num_classes))
        return [run.part_of(f"class {number}", of_classes([number])) for number in numbers]

    def _units(self, units: Tensor, data: TrainingData, place: int) -> Units:
        private = data.private
        if self.classes != "per-class":
            return Units(units, private.labels, private.ids)
        own = (private.labels == place).nonzero().flatten()
        return Units(units[own], torch.zeros(len(own), dtype=torch.long), private.ids[own])

    def _plan(self, data: TrainingData) -> tuple[int, int]:
        """Records that a learner counts on, and steps: of public numbers alone."""
        # How many records a class has is private: an even share of all is planned with.
        share = data.num_classes if self.classes == "per-class" else 1
        records = max(1, round(data.num_records / share))
        steps = steps_of_epochs(self.epochs, num_records=records, batch_size=self.batch_size)
        return records, self.steps or steps

    def _query(self, data: TrainingData, run: Run) -> PoissonGradients:
        records, steps = self._plan(data)
        query = gradients_at_noise(
            "dpmi",
            num_records=records,
            batch_size=self.batch_size,
            steps=steps,
            clip_norm=self.clip_norm,
        )
        return run.at_noise(query)


class _Watched(LatentHistory):
    """The history of the one learner, which hears of every step: so does who looks at the run."""

    def __init__(self, history: LatentHistory, release: Synthesizer, run: Run) -> None:
        nn.Module.__init__(self)
        self.decoders = history.decoders  # its own: what is filled here is filled there
        self.register_buffer("steps", history.steps)
        self.release, self.run = release, run

    def take(self, done: int, of: int, decoder: nn.Module) -> None:
        super().take(done, of, decoder)

        def so_far() -> Synthesizer:
            released = copy.deepcopy(self.release.module)
            assert isinstance(released, LatentSynthesizer)
            released.learners[0].load_state_dict(decoder.state_dict())
            return replace(self.release, module=released)

        self.run.look(done, of, so_far)
