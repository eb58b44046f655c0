"""Trains a Wasserstein GAN on public images and gives its generator.

The critic's loss is -E[f(x)] + E[f(G(z))]. What keeps it from growing for ever is either a clip
of its weights after each step (`wgan`), or a penalty on its gradient's norm between real and
generated images (`wgan-gp`). Released is an average over the last steps of the generator.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dpray.inversion.recipes import PublicRecipe
from dpray.progress import Progress, silent

_PENALTY = 10.0
_PENALTY_SHARE = 4  # it is taken over every fourth image: over all it is half of the work
_BETAS = (0.0, 0.9)
_AVERAGE = 0.995  # of the generator's weights, over about two hundred steps
_STATISTICS_BATCHES, _STATISTICS_BATCH = (
    20,
    256,
)  # from which the averaged generator's BatchNorm takes its numbers
_FINAL = 0.05  # the last step's size as a share of the first one's


def train_gan(
    recipe: PublicRecipe, pixels: Tensor, progress: Progress = silent
) -> tuple[nn.Module, nn.Module]:
    """(generator, critic). The same recipe and images give the same weights."""
    recipe = recipe.full()
    assert recipe.steps is not None and recipe.lr is not None and recipe.batch_size is not None
    channels, height, width = pixels.shape[1:]
    generator = recipe.build((channels, height, width)).train()
    critic = recipe.critic((channels, height, width)).train()
    average = copy.deepcopy(generator)
    rng = torch.Generator().manual_seed(recipe.seed)
    steps, size = recipe.steps, recipe.batch_size
    optimizers = [
        torch.optim.Adam(module.parameters(), recipe.lr, betas=_BETAS, fused=True)
        for module in (generator, critic)
    ]
    schedules = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, _FINAL, max(1, steps))
        for optimizer in optimizers
    ]
    with progress(f"public {recipe.loss}", steps) as bar:
        for _ in range(steps):
            for _ in range(recipe.critic_steps):
                real = pixels[torch.randint(len(pixels), (size,), generator=rng)]
                with torch.no_grad():
                    fake = generator(torch.randn(size, recipe.latent, generator=rng))
                optimizers[1].zero_grad()
                _critic_loss(critic, real, fake, recipe, rng).backward()
                optimizers[1].step()
                if recipe.loss == "wgan":
                    clip_weights(critic, recipe.weight_clip)
            critic.requires_grad_(False)
            optimizers[0].zero_grad()
            score = critic(generator(torch.randn(size, recipe.latent, generator=rng))).mean()
            (-score).backward()
            optimizers[0].step()
            critic.requires_grad_(True)
            for schedule in schedules:
                schedule.step()
            _average(average, generator)
            bar.advance()
    _renew_statistics(average, recipe, rng)
    return average.eval(), critic.eval()


def clip_weights(critic: nn.Module, bound: float) -> None:
    """Biases stay free: they do not change how steep the critic is."""
    with torch.no_grad():
        for parameter in critic.parameters():
            if parameter.dim() > 1:
                parameter.clamp_(-bound, bound)


def _critic_loss(
    critic: nn.Module, real: Tensor, fake: Tensor, recipe: PublicRecipe, rng: torch.Generator
) -> Tensor:
    scores = critic(torch.cat([fake, real]))
    loss = scores[: len(fake)].mean() - scores[len(fake) :].mean()
    if recipe.loss == "wgan":
        return loss
    real, fake = real[::_PENALTY_SHARE], fake[::_PENALTY_SHARE]
    share = torch.rand(len(real), 1, 1, 1, generator=rng)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return loss + _PENALTY * (slopes.flatten(1).norm(dim=1) - 1).square().mean()


@torch.no_grad()
def _average(average: nn.Module, generator: nn.Module) -> None:
    for mean, value in zip(average.parameters(), generator.parameters(), strict=True):
        mean.lerp_(value, 1 - _AVERAGE)


@torch.no_grad()
def _renew_statistics(generator: nn.Module, recipe: PublicRecipe, rng: torch.Generator) -> None:
    """BatchNorm's running numbers belong to other weights than the averaged ones."""
    for layer in generator.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over the batches that follow
    generator.train()
    for _ in range(_STATISTICS_BATCHES):
        generator(torch.randn(_STATISTICS_BATCH, recipe.latent, generator=rng))
