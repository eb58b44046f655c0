"""How many encoders a worker trains at once: what fits its memory, and no more than is fastest.

Everything here follows from public settings, so that the number of blocks, which a progress bar
shows, says nothing about the records.
"""

from __future__ import annotations

import torch

from dpray.errors import BadInput
from dpray.memory import kept_bytes
from dpray.stacks.recipes import EncoderSettings

# Measured on one core with the small network: 8 give 0.7 of the rate, 128 no more than 32. Larger
# blocks leave the cache, and more is lost when a worker is.
_FASTEST = {"cpu": 32, "cuda": 256}
_FASTEST_ONE_BY_ONE = 4
_COPIES = 4  # of every parameter: value, gradient and two moments of Adam
_PASSING = 2.0  # what the backward pass needs in passing, over what the forward pass kept
_SHARE = 0.5  # of the memory: the rest is for the records, for results under way and for others


def encoder_bytes(settings: EncoderSettings, num_records: int) -> int:
    """Memory that training one encoder takes, with batches of so many records: measured."""
    recipe = settings.recipe
    model = recipe.build(settings.seed)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    rows = max(1, min(num_records, settings.batch_size))
    # One row stands for all: what is kept grows by the same amount with each.
    images, latents = torch.zeros(1, *recipe.shape), torch.zeros(1, recipe.latent)
    label = torch.zeros(1, dtype=torch.long)
    kept = kept_bytes(lambda: model(images, label, latents, 1.0), model.parameters())
    activations = int(_PASSING * rows * kept)
    data = 2 * max(1, num_records) * images.numel() * images.element_size()
    return _COPIES * parameters + activations + data


def block_size(
    bytes_per_encoder: int,
    memory_bytes: int,
    num_workers: int,
    *,
    fastest: int = _FASTEST["cpu"],
    num_encoders: int | None = None,
) -> int:
    """Encoders for one block, when `num_workers` workers share `memory_bytes`.

    With `num_encoders` in all it is small enough that every worker gets some.
    """
    if min(bytes_per_encoder, memory_bytes, num_workers, fastest) < 1:
        raise BadInput("bytes_per_encoder, memory_bytes, num_workers and fastest must be above 0")
    fits = int(_SHARE * memory_bytes / num_workers) // bytes_per_encoder
    if fits < 1:
        raise BadInput(
            f"one encoder needs {bytes_per_encoder / 2**20:,.0f} MB and each of {num_workers} "
            f"workers has {_SHARE * memory_bytes / num_workers / 2**20:,.0f} MB; use fewer workers "
            "or a smaller network"
        )
    size = min(fits, fastest)
    if num_encoders is not None:
        size = min(size, max(1, -(-num_encoders // num_workers)))
    return size


def fastest_block(settings: EncoderSettings) -> int:
    if settings.one_by_one:
        return _FASTEST_ONE_BY_ONE
    return _FASTEST["cuda" if settings.device.startswith("cuda") else "cpu"]
