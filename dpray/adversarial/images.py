"""A private GAN over images, from its two networks to the release: paid, trained, averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from dpray.adversarial.duel import Duel, train_generator
from dpray.contract import Run, Synthesizer
from dpray.data.records import TrainingData
from dpray.privacy.preflight import preflight
from dpray.privacy.queries import PoissonGradients


def trained_on_images(
    untrained: Synthesizer,
    critic: nn.Module,
    duel: Duel,
    data: TrainingData,
    run: Run,
    at_noise: Callable[[float], PoissonGradients],
) -> Synthesizer:
    """The release after all critic steps of the query that `at_noise` gives, at its least noise.

    Guarantee: the whole query is charged before a private record is read, and `train_generator`
    reads them in its noisy gradients alone: an image and its label for the score of that record.
    """
    critic = critic.to(run.device)
    _check_critic(critic, duel, data, run)
    query = run.world.from_first(lambda: run.at_noise(at_noise))
    paid = run.ledger.pay(query)  # from here on private data may be read
    run.facts.update(query.facts())
    # However short the training is, the generator moves once.
    duel = replace(duel, critic_steps=min(duel.critic_steps, query.steps))
    private = data.private

    def real_scores(rows: Tensor) -> Tensor:
        images, labels = private.pixels[rows].to(run.device), private.labels[rows].to(run.device)
        scores: Tensor = critic(images, labels)
        return scores

    def look(done: int, average: nn.Module) -> None:
        run.look(done, query.steps, lambda: replace(untrained, module=average))

    average = train_generator(
        untrained.module.to(run.device),
        critic,
        nn.Module(),
        look,
        real_scores,
        private.ids,
        duel,
        run,
        paid,
        query.name,
    )
    return replace(untrained, module=average.eval())


def _check_critic(critic: nn.Module, duel: Duel, data: TrainingData, run: Run) -> None:
    """The pre-flight, on random images: nothing private is read before the ledger is paid."""
    rng = run.generator("preflight")
    images = torch.rand(4, *data.shape, generator=rng).to(run.device)
    labels = torch.randint(duel.num_classes, (4,), generator=rng).to(run.device)
    preflight(critic, lambda rows: critic(images[rows], labels[rows]))
