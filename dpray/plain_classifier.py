"""A small classifier, trained without any privacy: for public records, or to stay private.

What it learns is as private as the records it is given: nothing here is noisy.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dpray.data.records import Images
from dpray.models.classifiers import ImageClassifier

_IMAGES_SEEN = 60_000  # 12 epochs of 5,000 images; bounded for very small and very large sets
_FEWEST_EPOCHS, _MOST_EPOCHS = 6, 30
_LEARNING_RATE = 2e-3


def train_classifier(images: Images, num_classes: int, seed: int = 0) -> ImageClassifier:
    """Adam on shifted copies of the images. The same images and seed give the same classifier."""
    rng = torch.Generator().manual_seed(seed)
    classifier = untrained_classifier(images, num_classes, seed).train()
    count = len(images)
    batch_size = 128 if count >= 4_000 else 32  # few records need many steps rather than large
    epochs = min(max(_IMAGES_SEEN // count, _FEWEST_EPOCHS), _MOST_EPOCHS)
    steps = epochs * -(-count // batch_size)
    optimizer = torch.optim.Adam(classifier.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=rng).split(batch_size):
            loss = F.cross_entropy(
                classifier(_shifted(images.pixels[rows], rng)), images.labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return classifier.eval().requires_grad_(False)


def untrained_classifier(images: Images, num_classes: int, seed: int) -> ImageClassifier:
    channels, height, width = images.pixels.shape[1:]
    with torch.random.fork_rng(devices=[]):  # initial weights come from the global generator
        torch.manual_seed(seed)
        shape = (channels, height, width)
        return ImageClassifier(fitting_head(shape), "pixels", shape, num_classes)


def fitting_head(shape: tuple[int, int, int]) -> Literal["cnn", "mlp"]:
    return "cnn" if min(shape[1:]) >= 4 else "mlp"


def _shifted(pixels: Tensor, rng: torch.Generator) -> Tensor:
    """The batch moved by up to a fourteenth of its side (2 pixels of 28), edges repeated."""
    height, width = pixels.shape[2:]
    reach = min(height, width) // 14
    down, right = torch.randint(0, 2 * reach + 1, (2,), generator=rng).tolist()
    padded = F.pad(pixels, (reach, reach, reach, reach), mode="replicate")
    return padded[:, :, down : down + height, right : right + width]
