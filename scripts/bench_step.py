"""Time of one private step against one plain step, on the small CNN of the image benchmarks.

Plain training, dpray, Opacus with hooks and Opacus with ghost clipping take turns in one process
on the same random batch, so a busy machine slows all of them alike. Prints medians, their spread
and the ratio to the plain step; `--json` prints one JSON object instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from dpray.privacy.gradients import noisy_gradient
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery, PoissonGradients

CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.01
Step = Callable[[], object]


def small_cnn() -> nn.Module:
    """421,642 parameters, with the weights of seed 0."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def plain_step(images: Tensor, labels: Tensor) -> Step:
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def dpray_step(images: Tensor, labels: Tensor, backend: str, noise_multiplier: float) -> Step:
    model, ids = small_cnn(), torch.arange(len(images))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    # A sample rate of 1 gives exactly the batch; nothing is released, so no ledger is asked.
    query = PoissonGradients(
        sample_rate=1.0,
        steps=1_000_000,
        clip_norm=CLIP_NORM,
        noise_multiplier=noise_multiplier,
        expected_batch_size=len(images),
    )
    paid, key, count = PaidQuery(query, entry=0), RunKey.insecure(0), iter(range(query.steps))

    def losses(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(images[rows]), labels[rows], reduction="none")

    def step() -> None:
        noisy_gradient(model, losses, ids, next(count), paid=paid, key=key, backend=backend)
        optimizer.step()

    return step


def opacus_hooks_step(images: Tensor, labels: Tensor) -> Step:
    model = GradSampleModule(small_cnn(), loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(images),
    )

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def opacus_ghost_step(images: Tensor, labels: Tensor) -> Step:
    model = GradSampleModuleFastGradientClipping(
        small_cnn(), max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(images),
    )
    criterion = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss(), "mean")

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()

    return step


def measured(steps: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds, quartiles and ratio to `plain` of steps that take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 2:  # the first two warm up
                times[name].append(1e3 * (time.perf_counter() - start))
    plain = times["plain"]
    table = {}
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        ratio = statistics.median(t / p for t, p in zip(taken, plain, strict=True))
        table[name] = {"ms": middle, "ms_low": low, "ms_high": high, "ratio": ratio}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256, help="examples in a step (256)")
    parser.add_argument("--steps", type=int, default=15, help="timed rounds (15)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if min(args.batch, args.steps - 1, args.threads) < 1:
        parser.error("--batch and --threads must be at least 1, --steps at least 2")
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    images, labels = torch.rand(args.batch, 1, 28, 28), torch.randint(0, 10, (args.batch,))
    num_parameters = sum(p.numel() for p in small_cnn().parameters())
    key = RunKey.insecure(0)
    steps: dict[str, Step] = {
        "plain": plain_step(images, labels),
        "dpray": dpray_step(images, labels, "bookkeeping", NOISE_MULTIPLIER),
        "dpray without noise": dpray_step(images, labels, "bookkeeping", 0.0),
        "dpray noise alone": lambda: key.normals("bench", 0, num_parameters),
        "dpray, opacus backend": dpray_step(images, labels, "opacus", NOISE_MULTIPLIER),
        "opacus hooks": opacus_hooks_step(images, labels),
        "opacus ghost": opacus_ghost_step(images, labels),
    }
    table = measured(steps, args.steps)
    if args.json:
        setting = {k: v for k, v in vars(args).items() if k != "json"}
        setting |= {"parameters": num_parameters, "torch": torch.__version__}
        print(json.dumps({"setting": setting, "steps": table}))
        return
    print(f"{num_parameters:,} parameters, batch {args.batch}, {args.threads} threads")
    print(f"{'step':<24}{'ms':>8}{'quartiles':>18}{'ratio':>8}")
    for name, row in table.items():
        spread = f"{row['ms_low']:.1f} .. {row['ms_high']:.1f}"
        print(f"{name:<24}{row['ms']:>8.1f}{spread:>18}{row['ratio']:>8.2f}")


if __name__ == "__main__":
    main()
