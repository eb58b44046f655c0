"""A generator that follows noisy gradients by its own images, which is all it hears of records.

The loop of the methods that release no more than that: public images, a noisy gradient by them,
pulled back through the generator, and one step of Adam. What is released is a running average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from dpray import models
from dpray.averages import move_average
from dpray.checkpoints import Checkpoint, pack, unpack
from dpray.contract import Run, Synthesizer
from dpray.data.records import TrainingData
from dpray.models.generators import coarsened

GeneratorKind = Literal["coarse", "conv", "deconv", "mlp"]
# (step, images as they are compared with records) to a noisy gradient by these, in any shape.
NoisyGradient = Callable[[int, Tensor], Tensor]

_LABEL_SCALE = 5.0  # of the one-hot label beside unit latents, in the coarse generator


class State(Protocol):
    """What a method keeps beside the checkpoints of its generator."""

    def start(self, step: int) -> None: ...
    def keep(self, step: int) -> None: ...
    def kept(self, step: int) -> None: ...


@dataclass(frozen=True)
class Follower:
    """A generator, and how it follows. All of it is public."""

    kind: GeneratorKind
    latent: int
    hidden: int  # units, or maps at the full size for deconv
    grain: int  # pixels a side of the squares in which images are compared: fewer to noise
    lr: float  # of Adam, at first
    schedule: Literal["linear", "constant"]  # down to nothing, or not
    averaging: float

    def build(self, data: TrainingData, run: Run) -> tuple[nn.Module, Synthesizer]:
        """A fresh generator, and the release that holds its average."""
        arguments: dict[str, Any] = {
            "shape": list(data.shape),
            "num_classes": data.num_classes,
            "latent": self.latent,
            "hidden": self.hidden,
        }
        name = f"{self.kind}-generator"
        if self.kind == "coarse":
            name = "conditional-decoder"
            arguments |= {"label_scale": _LABEL_SCALE, "grain": self.grain}
        torch.manual_seed(run.seed)
        generator, average = (models.build(name, **arguments).to(run.device) for _ in range(2))
        average.load_state_dict(generator.state_dict())
        release = Synthesizer(
            model=name,
            arguments=arguments,
            module=average,
            class_names=data.class_names,
            shape=data.shape,
        )
        return generator, release

    def images(self, generator: nn.Module, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Generated images as they are compared with records."""
        return coarsened(generator(labels, rng), self.grain)


def follow(
    generator: nn.Module,
    release: Synthesizer,
    noisy_gradient: NoisyGradient,
    labels: Tensor,
    follower: Follower,
    run: Run,
    *,
    name: str,
    steps: int,
    state: State | None = None,
) -> None:
    """Takes the steps that are left; after them `release` holds what they made.

    `noisy_gradient` is asked once for every step, in their order, about images of `labels`. What
    it gives must be public.
    """
    average = release.module
    optimizer = torch.optim.Adam(generator.parameters(), lr=follower.lr)
    kept = {"generator": generator, "average": average}
    checkpoint = run.checkpoints.latest("train", ledger_heads=run.ledger.heads)
    first = 0
    if checkpoint is not None:
        unpack(checkpoint.tensors, kept, optimizer)
        first = checkpoint.step
    if state is not None:
        state.start(first)
        run.world.barrier()  # nobody writes while another still clears away

    def save(step: int) -> None:
        if state is not None:
            state.keep(step)
            run.world.barrier()  # a checkpoint counts once every rank kept what is its own
        run.checkpoints.save("train", Checkpoint(step, pack(kept, optimizer), run.ledger.head))
        if state is not None:
            state.kept(step)

    with run.progress(name, steps) as bar:
        bar.advance(first)
        bar.note(f"epsilon {run.ledger.epsilon:.3g} charged, delta {run.ledger.budget.delta:g}")
        for step in range(first, steps):
            if follower.schedule == "linear":
                # Late steps hold as much noise as early ones and less news.
                optimizer.param_groups[0]["lr"] = follower.lr * (1 - step / steps)
            images = follower.images(generator, labels, run.generator(f"images {step}"))
            noisy = noisy_gradient(step, images.detach())
            optimizer.zero_grad()
            images.backward(noisy.reshape(images.shape).to(images))
            optimizer.step()
            move_average(average, generator, step, follower.averaging)
            bar.advance()
            run.look(step + 1, steps, lambda: release)
            # Ranks keep what is their own together, so one of them says when.
            due = run.checkpoints.due
            if due() if state is None else run.world.from_first(due):
                save(step + 1)
    save(steps)
    average.eval()
