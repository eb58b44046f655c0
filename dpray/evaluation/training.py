"""How each network is trained on synthetic images, and by what its weights are chosen.

Only synthetic images come in here: no function takes a test set, so nothing can be selected on
it. `mlp` and `cnn` (Adam) keep the weights that are best on a tenth of the synthetic images held
out; the six architectures follow Private Set Generation (SGD, a fixed number of epochs). Sets of
at most 2,000 images are trained on whole, with augmentation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from dpray.evaluation.augmentation import augment
from dpray.memory import reuse_freed_blocks
from dpray.models import yardsticks
from dpray.models.architectures import ARCHITECTURES, Shape
from dpray.models.batches import in_batches

BATCH = 256
SMALL = 2_000  # images; up to here a set is augmented and nothing is held out
LARGE = 10_000  # from here on epochs are counted, below steps: an epoch is too short to count
HELD_OUT = 0.1
PATIENCE = 4  # epochs without a better held-out accuracy ...
PATIENCE_STEPS = 140  # ... but never fewer steps than such epochs have at LARGE
FEWEST_STEPS = 1_500  # of Adam, below LARGE
MOST_EPOCHS = 20
CNN_EPOCHS = 10  # of the slow one, where that is FEWEST_STEPS or more
PSG_EPOCHS = 1_000
PSG_LARGE_EPOCHS, PSG_LARGE_STEPS = 10, 2_000  # at least, beyond what PSG was made for

NETWORKS: dict[str, Callable[[Shape, int], nn.Sequential]] = {
    "mlp": yardsticks.mlp,
    "cnn": yardsticks.cnn,
    **ARCHITECTURES,
}


@dataclass(frozen=True)
class Recipe:
    epochs: int
    augmented: bool
    held_out: float  # share of the images that chooses among the epochs; 0: the last one is kept
    patience: int  # epochs


def recipe_for(name: str, count: int, epochs: int | None) -> Recipe:
    """How long to train `name` on `count` images; `epochs` replaces the number of epochs."""
    small = count <= SMALL
    held_out = 0.0 if small or name in ARCHITECTURES else HELD_OUT
    steps = math.ceil((count - int(held_out * count)) / BATCH)
    if name in ARCHITECTURES:
        several = max(PSG_LARGE_EPOCHS, math.ceil(PSG_LARGE_STEPS / steps))
        default = PSG_EPOCHS if small else several
    elif count < LARGE:
        default = math.ceil(FEWEST_STEPS / steps)
    elif name == "cnn":
        default = min(max(CNN_EPOCHS, math.ceil(FEWEST_STEPS / steps)), MOST_EPOCHS)
    else:
        default = MOST_EPOCHS
    patience = max(PATIENCE, math.ceil(PATIENCE_STEPS / steps))
    return Recipe(default if epochs is None else epochs, small, held_out, patience)


def train_network(
    name: str, images: Tensor, labels: Tensor, *, num_classes: int, seed: int, epochs: int | None
) -> nn.Module:
    """`name` trained on synthetic `images`. The same seed gives the same weights."""
    reuse_freed_blocks()
    recipe = recipe_for(name, len(images), epochs)
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=rng)
    chosen_on = int(recipe.held_out * len(images))
    held_out, rows = order[:chosen_on], order[chosen_on:]
    # Initial weights and dropout draw from the global generator: it is lent, not taken over.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        channels, height, width = images.shape[1:]
        network = NETWORKS[name]((channels, height, width), num_classes)
        trained = _epochs(name, network, images, labels, rows, recipe, rng)
        if len(held_out) == 0:
            for _ in trained:
                pass
        else:
            keep_best(network, trained, images[held_out], labels[held_out], recipe.patience)
    return network.eval()


def logits_of(network: nn.Module, images: Tensor) -> Tensor:
    network.eval()
    return in_batches(network, images, 500, torch.device("cpu"))


def _epochs(
    name: str,
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    rows: Tensor,
    recipe: Recipe,
    rng: torch.Generator,
) -> Iterator[None]:
    """Trains `network` on `rows`, one epoch each time it is asked to go on."""
    optimiser: optim.Optimizer
    if name in ARCHITECTURES:
        optimiser = optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        slower_from = [recipe.epochs // 2 + 1]
    else:
        optimiser = optim.Adam(network.parameters())
        slower_from = []
    schedule = optim.lr_scheduler.MultiStepLR(optimiser, slower_from, gamma=0.1)
    for _ in range(recipe.epochs):
        network.train()
        for batch in rows[torch.randperm(len(rows), generator=rng)].split(BATCH):
            pixels = augment(images[batch], rng) if recipe.augmented else images[batch]
            optimiser.zero_grad()
            F.cross_entropy(network(pixels), labels[batch]).backward()
            optimiser.step()
        schedule.step()
        yield


def keep_best(
    network: nn.Module, trained: Iterator[None], images: Tensor, labels: Tensor, patience: int
) -> None:
    """Leaves `network` as it was after its best epoch: most correct, then least loss."""
    best, best_epoch = (-1, 0.0), 0
    weights = copy.deepcopy(network.state_dict())
    for epoch, _ in enumerate(trained):
        logits = logits_of(network, images)
        correct = int((logits.argmax(1) == labels).sum())
        score = (correct, -float(F.cross_entropy(logits, labels)))
        if score > best:
            best, best_epoch = score, epoch
            weights = copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= patience:
            break
    network.load_state_dict(weights)
