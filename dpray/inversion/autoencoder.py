"""Trains an autoencoder on public images: mean squared error, Adam, one cycle of step sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpray.inversion.recipes import PublicRecipe
from dpray.progress import Progress, silent


def train_autoencoder(
    recipe: PublicRecipe, pixels: Tensor, progress: Progress = silent
) -> nn.Module:
    """The same recipe and images give the same weights; no generator but its own is used."""
    recipe = recipe.full()
    assert recipe.steps is not None and recipe.lr is not None and recipe.batch_size is not None
    channels, height, width = pixels.shape[1:]
    module = recipe.build((channels, height, width)).train()
    if recipe.steps == 0:
        return module.eval()
    rng = torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.lr, total_steps=max(recipe.steps, 2)
    )
    with progress("public autoencoder", recipe.steps) as bar:
        for _ in range(recipe.steps):
            images = pixels[torch.randint(len(pixels), (recipe.batch_size,), generator=rng)]
            loss = F.mse_loss(module(images), images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.advance()
    return module.eval()
