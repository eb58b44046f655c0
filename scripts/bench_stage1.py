"""How fast the encoders of DP2-VAE are trained: one at a time, in blocks, and blocks over Ray.

Encoder-steps a second, all in one run and in turns, on random images. One at a time is the loop a
user would write: a module, `torch.optim.Adam`, a subset after the other. It is measured with the
threads that torch takes by itself and with one. Blocks run on one core, then on all through Ray.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from dpray.data.records import Images
from dpray.distributed.cluster import connect, disconnect
from dpray.distributed.pool import RayPool
from dpray.models.generators import Shape, coarse_shape
from dpray.stacks.encoders import EncoderJobs
from dpray.stacks.pretrain import EncoderJob, pretrain_block
from dpray.stacks.recipes import EncoderSettings, mlp_recipe
from dpray.stacks.subsets import Subsets

SHAPE, CLASSES = (1, 28, 28), 10


def make_subsets(encoders: int, records: int, shape: Shape) -> Subsets:
    count = encoders * records
    rng = torch.Generator().manual_seed(0)
    images = Images(
        torch.rand(count, *shape, generator=rng),
        torch.randint(CLASSES, (count,), generator=rng),
        torch.arange(count),
    )
    return Subsets(images, torch.arange(count) // records, encoders)


Work = tuple[int, float]  # encoder-steps, and processor seconds of other processes


def one_at_a_time(job: EncoderJob) -> Work:
    """What a user would write."""
    settings = job.settings
    for pixels, labels in zip(job.batch.pixels, job.batch.labels, strict=True):
        model = settings.recipe.build(settings.seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
        for _ in range(settings.steps):
            optimizer.zero_grad()
            noise = torch.randn(len(labels), settings.recipe.latent)
            loss = model.example_losses(pixels, labels, noise, settings.kl_weight).mean()
            loss.backward()
            clip_grad_norm_(model.encoder.parameters(), settings.clip_norm)
            clip_grad_norm_(model.decoder.parameters(), settings.clip_norm)
            optimizer.step()
    return len(job.numbers) * settings.steps, 0.0


def one_block(job: EncoderJob) -> Work:
    pretrain_block(job)
    return len(job.numbers) * job.settings.steps, 0.0


def over_ray(jobs: EncoderJobs) -> Work:
    pool = RayPool()
    done = sum(1 for _ in pool.map(pretrain_block, jobs, label="encoders"))
    assert done == len(jobs)
    return sum(len(block) for block in jobs.blocks) * jobs.settings.steps, pool.cpu_seconds


def timed(run: Callable[[], Work], threads: int) -> tuple[float, float]:
    """Encoder-steps a second, and a second of processor time."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    wall, cpu = time.perf_counter(), time.process_time()
    steps, elsewhere = run()
    spent = time.process_time() - cpu + elsewhere
    rates = steps / (time.perf_counter() - wall), steps / spent
    torch.set_num_threads(before)
    return rates


def measure(words: argparse.Namespace, cores: int, threads: int) -> dict[str, Any]:
    shape = coarse_shape(SHAPE, words.grain)
    recipe = mlp_recipe(
        shape, CLASSES, words.latent, words.hidden, 5.0, encoder_hidden=words.encoder_hidden
    )
    settings = EncoderSettings(recipe=recipe, steps=words.steps, batch_size=words.records)
    subsets = make_subsets(words.block, words.records, shape)
    numbers = torch.arange(words.block)
    block = EncoderJob(tuple(numbers.tolist()), subsets.batch(numbers), settings)
    few = torch.arange(words.alone)
    alone = EncoderJob(tuple(few.tolist()), subsets.batch(few), settings)
    jobs = EncoderJobs(subsets, (numbers,) * (words.blocks_per_core * cores), settings)
    ways: dict[str, tuple[Callable[[], Work], int]] = {
        "one at a time, torch's threads": (lambda: one_at_a_time(alone), threads),
        "one at a time, one thread": (lambda: one_at_a_time(alone), 1),
        "blocks, one core": (lambda: one_block(block), 1),
        "blocks, Ray, all cores": (lambda: over_ray(jobs), 1),
    }
    over_ray(EncoderJobs(subsets, jobs.blocks, replace(settings, steps=2)))  # warms the workers
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(words.repeats):
        for name, (run, used) in ways.items():
            found[name].append(timed(run, used))
    return {
        "network": {
            "latent": words.latent,
            "hidden": words.hidden,
            "encoder_hidden": words.encoder_hidden,
            "grain": words.grain,
        },
        "records": words.records,
        "steps": words.steps,
        "block": words.block,
        "cores": cores,
        "torch_threads": threads,
        "load_average": os.getloadavg()[0],
        "per_second": {name: [wall for wall, _ in rates] for name, rates in found.items()},
        # Without what others on the machine took.
        "per_cpu_second": {name: [cpu for _, cpu in rates] for name, rates in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--address", help="host:port of a cluster (default: a local Ray)")
    parser.add_argument("--cpus", type=int, help="cores of the local Ray (default: all)")
    parser.add_argument("--grain", type=int, default=2, help="of the images (default: 2)")
    parser.add_argument("--hidden", type=int, default=64, help="of the decoder (default: 64)")
    parser.add_argument("--encoder-hidden", type=int, default=32, help="units (default: 32)")
    parser.add_argument("--latent", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--records", type=int, default=24, help="of a subset (default: 24)")
    parser.add_argument("--block", type=int, default=32, help="encoders (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of each (default: %(default)s)")
    parser.add_argument("--alone", type=int, default=4, help="encoders one at a time (default: 4)")
    parser.add_argument("--blocks-per-core", type=int, default=2, help="over Ray (default: 2)")
    parser.add_argument("--repeats", type=int, default=3, help="of all (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    words = parser.parse_args()
    words.alone = min(words.alone, words.block)

    threads = torch.get_num_threads()
    cores = int(connect(words.address, num_cpus=words.cpus).resources().cpus)
    try:
        result = measure(words, cores, threads)
    finally:
        disconnect()
    if words.json:
        print(json.dumps(result))
        return
    pixels = math.prod(coarse_shape(SHAPE, words.grain))
    print(
        f"encoder {pixels + CLASSES}-{words.encoder_hidden}-{2 * words.latent}, decoder "
        f"{words.latent + CLASSES}-{words.hidden}-{pixels} (grain "
        f"{words.grain}), {words.records} records a subset, blocks of {words.block}, "
        f"{cores} cores, load average {result['load_average']:.1f}"
    )
    medians = {name: statistics.median(rates) for name, rates in result["per_second"].items()}
    for name, rates in result["per_second"].items():
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        own = f"{statistics.median(result['per_cpu_second'][name]):,.0f} a cpu second"
        print(f"  {name:<31} {medians[name]:>8,.0f} encoder-steps/s  ({spread}; {own})")
    block, ray = medians["blocks, one core"], medians["blocks, Ray, all cores"]
    for name in list(medians)[:2]:
        times = f"{block / medians[name]:.1f} times, over Ray {ray / medians[name]:.1f}"
        print(f"  blocks over {name}: {times}")
    print(f"  Ray on {cores} cores over blocks on one: {ray / block:.2f} times")


if __name__ == "__main__":
    main()
