"""How long 2500 encoders and a search of 64 trials would take on 1 to 512 workers.

The prices are measured here, in this run: one encoder, one private training step, one empty Ray
task, one new worker, one result handed over. The rest is arithmetic (`wall_seconds`), checked
against a small fan-out on two workers. What is measured and what is assumed is printed and stands
on the plot. A worker is one core like those of this machine; a prediction is not a measurement.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import secrets
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORKERS = tuple(2**i for i in range(10))
PIXELS, CLASSES, LATENT = 784, 10, 8


@dataclass(frozen=True)
class Costs:
    """Prices in seconds; `statements` says which are measured and which assumed."""

    task: float  # of work, on one core
    slowest: float  # how many times the median the slowest of the timed tasks took
    per_task: float  # of the driver: submit, schedule, fetch an empty task
    start: float  # of a worker: a process that has loaded torch
    result_bytes: int
    bandwidth: float  # bytes a second into the driver's node
    efficiency: float  # of a worker among others, against one alone


@dataclass(frozen=True)
class Prediction:
    workers: int
    seconds: float
    speedup: float  # against one worker
    bound: str  # what takes the longest: work, driver, or start


def wall_seconds(num_tasks: int, workers: int, costs: Costs) -> float:
    """start + max(rounds of work, the driver's time for all tasks) + the last straggler."""
    return sum(_parts(num_tasks, workers, costs))


def _parts(num_tasks: int, workers: int, costs: Costs) -> tuple[float, float, float]:
    """Start-up, the longer of work and driver, and the wait for the slowest task at the end."""
    efficiency = costs.efficiency if workers > 1 else 1.0
    rounds = math.ceil(num_tasks / workers)
    work = rounds * costs.task / efficiency
    driver = num_tasks * (costs.per_task + costs.result_bytes / costs.bandwidth)
    straggler = (costs.slowest - 1) * costs.task if workers > 1 else 0.0
    return costs.start, max(work, driver), straggler


def predict(num_tasks: int, costs: Costs, workers: tuple[int, ...] = WORKERS) -> list[Prediction]:
    alone = wall_seconds(num_tasks, 1, costs)
    rows = []
    for w in workers:
        start, longest, straggler = _parts(num_tasks, w, costs)
        driver = num_tasks * (costs.per_task + costs.result_bytes / costs.bandwidth)
        bound = "driver" if longest <= driver else "work"
        bound = "start" if start > longest else bound
        seconds = start + longest + straggler
        rows.append(Prediction(w, seconds, alone / seconds, bound))
    return rows


def train_encoder(seed: int, records: int, hidden: int, steps: int) -> tuple[float, Any]:
    """One shard's conditional VAE (an MLP); its processor seconds and the encoder's weights."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    images = torch.rand(records, PIXELS)
    labels = F.one_hot(torch.randint(0, CLASSES, (records,)), CLASSES).float()
    encoder = nn.Sequential(
        nn.Linear(PIXELS + CLASSES, hidden), nn.ReLU(), nn.Linear(hidden, 2 * LATENT)
    )
    decoder = nn.Sequential(
        nn.Linear(LATENT + CLASSES, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS)
    )
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    started = time.process_time()
    for _ in range(steps):
        mean, log_variance = encoder(torch.cat([images, labels], 1)).chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        logits = decoder(torch.cat([latent, labels], 1))
        fit = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        optimizer.zero_grad()
        ((fit + divergence) / records).backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in encoder.parameters()]).numpy()
    return time.process_time() - started, weights


class Fresh:
    """As an actor: a new process that has loaded torch, as a trial of a search is."""

    def ready(self) -> None:
        import torch  # noqa: F401


def private_step_seconds(batch: int, rounds: int) -> float:
    """Processor seconds of one DP-SGD step of the small CNN, on one thread."""
    import torch
    from bench_step import dpray_step  # the script beside this one

    torch.set_num_threads(1)
    images, labels = torch.rand(batch, 1, 28, 28), torch.randint(0, CLASSES, (batch,))
    step = dpray_step(images, labels, "bookkeeping", 1.0)
    step()
    started = time.process_time()
    for _ in range(rounds):
        step()
    return (time.process_time() - started) / rounds


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every price, on a Ray of its own with two workers."""
    # A token of its own, so that nothing is written to or read from the home folder; set before
    # Ray is loaded, as it looks only then.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(16))
    import ray

    with tempfile.TemporaryDirectory(prefix="sm", dir="/tmp") as folder:  # sockets: short path
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100_000_000,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
        )
        try:
            return _measure_with_ray(ray, args)
        finally:
            ray.shutdown()


def _measure_with_ray(ray: Any, args: argparse.Namespace) -> dict[str, Any]:
    setting = (args.records, args.hidden, args.steps)
    encoder = ray.remote(num_cpus=1)(train_encoder)
    fresh_process = ray.remote(num_cpus=1)(Fresh)

    @ray.remote(num_cpus=1)
    def nothing() -> None:
        return None

    starts = []
    for _ in range(args.repeats):
        started = time.perf_counter()
        fresh = fresh_process.remote()
        ray.get(fresh.ready.remote())
        starts.append(time.perf_counter() - started)
        ray.kill(fresh)

    ray.get([encoder.remote(i, *setting) for i in range(4)])  # loads torch in both workers
    ray.get([nothing.remote() for _ in range(50)])
    started = time.perf_counter()
    waiting = [nothing.remote() for _ in range(args.empty_tasks)]
    submitted = time.perf_counter() - started
    ray.get(waiting)
    per_task = (time.perf_counter() - started) / args.empty_tasks

    timed = ray.get([encoder.remote(i, *setting) for i in range(args.timed_tasks)])
    seconds = [taken for taken, _ in timed]
    weights = timed[0][1]
    put = ray.put(weights)
    started = time.perf_counter()
    for _ in range(20):
        ray.get(put)
    handed_over = (time.perf_counter() - started) / 20

    started = time.perf_counter()
    ray.get([encoder.remote(i, *setting) for i in range(args.checked_tasks)])
    fan_out = time.perf_counter() - started
    return {
        "encoder_seconds": statistics.median(seconds),
        "encoder_slowest_ratio": max(seconds) / statistics.median(seconds),
        "private_step_seconds": private_step_seconds(args.batch, args.repeats + 2),
        "driver_seconds_per_task": per_task,
        "submit_seconds_per_task": submitted / args.empty_tasks,
        "worker_start_seconds": statistics.median(starts),
        "result_bytes": int(weights.nbytes),
        "result_seconds_on_one_node": handed_over,
        "fan_out_seconds_on_2_workers": fan_out,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def make_costs(found: dict[str, Any], args: argparse.Namespace) -> tuple[Costs, Costs]:
    """The prices of an encoder and of a trial. A trial is a new process, so it pays its start."""
    bandwidth = args.gigabits * 1e9 / 8
    shared = {
        "slowest": found["encoder_slowest_ratio"],
        "per_task": found["driver_seconds_per_task"],
        "bandwidth": bandwidth,
        "efficiency": args.efficiency,
        "start": found["worker_start_seconds"] + args.node_start,
    }
    encoder = Costs(task=found["encoder_seconds"], result_bytes=found["result_bytes"], **shared)
    trial_work = found["private_step_seconds"] * args.trial_steps + found["worker_start_seconds"]
    return encoder, Costs(task=trial_work, result_bytes=10_000, **shared)


def statements(found: dict[str, Any], args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """What is measured and what is assumed, one line each: for the terminal and for the plot."""
    measured = [
        f"one encoder ({args.records} images, {args.hidden} hidden units, {args.steps} Adam steps):"
        f" {found['encoder_seconds']:.2f} core-s, slowest {found['encoder_slowest_ratio']:.2f}x",
        f"one DP-SGD step (CNN, batch {args.batch}): {found['private_step_seconds']:.3f} core-s",
        f"an empty Ray task: {1e3 * found['driver_seconds_per_task']:.2f} ms from one driver "
        f"({1 / found['driver_seconds_per_task']:.0f} a second); "
        f"submission alone {1e3 * found['submit_seconds_per_task']:.2f} ms",
        f"a new worker that has loaded torch: {found['worker_start_seconds']:.1f} s",
        f"a result: {found['result_bytes'] / 1e3:.0f} kB, handed over within one node in "
        f"{1e3 * found['result_seconds_on_one_node']:.2f} ms",
        f"machine: {found['cores']} cores, load average {found['load_average']:.1f}",
    ]
    assumed = [
        "a worker is one core as fast as this machine's; all start at once",
        f"each worker runs at {args.efficiency:.0%} of its speed alone (shared memory, disks)",
        f"results reach the driver at {args.gigabits:g} Gbit/s; the driver costs the same per task "
        "at any number of workers",
        f"a trial is {args.trial_steps} private steps and a process of its own",
        f"nodes are up {args.node_start:g} s after they are asked for",
    ]
    return measured, assumed


def draw(
    path: Path,
    tables: dict[str, list[Prediction]],
    limits: dict[str, tuple[str, float]],
    notes: tuple[list[str], list[str]],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 7.2))
    for panel, (title, rows) in zip(panels, tables.items(), strict=True):
        workers = [row.workers for row in rows]
        ideal = [rows[0].seconds / w for w in workers]
        panel.plot(workers, ideal, "--", color="0.6", label="ideal: time on 1 worker / workers")
        panel.plot(workers, [row.seconds for row in rows], "o-", color="C0", label="predicted")
        what, limit = limits[title]
        panel.axhline(limit, color="C3", linestyle=":", label=f"no less than: {what}")
        panel.set(xscale="log", yscale="log", xlabel="workers", ylabel="wall time", title=title)
        panel.set_xticks(workers, [str(w) for w in workers])
        panel.minorticks_off()
        low, high = 0.4 * min(*ideal, limit), 3 * rows[0].seconds
        ticks = [t for t in _TICKS if low <= t <= high]
        panel.set_yticks(ticks, [_duration(t) for t in ticks])
        panel.set(xlim=(0.7, 1.9 * workers[-1]), ylim=(low, high))
        for row in (rows[0], rows[5], rows[-1]):
            panel.annotate(
                _duration(row.seconds),
                (row.workers, row.seconds),
                xytext=(4, 8),
                textcoords="offset points",
                ha="center" if row is rows[-1] else "left",
            )
        panel.grid(alpha=0.3)
        panel.legend(loc="lower left", fontsize=8)
    for x, title, lines in ((0.03, "Measured here", notes[0]), (0.53, "Assumed", notes[1])):
        text = "\n".join(_wrapped(line) for line in lines)
        figure.text(x, 0.27, title, fontsize=9, weight="bold", va="top")
        figure.text(x, 0.245, text, fontsize=8, va="top", linespacing=1.4)
    figure.suptitle("Predicted, not measured: wall time on more workers")
    figure.tight_layout(rect=(0, 0.29, 1, 0.98))
    figure.savefig(path, dpi=130)


_TICKS = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 10 * 86400)


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _wrapped(line: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(f"- {line}", 92, subsequent_indent="  "))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="PNG", help="write the plot here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: rougher prices")
    parser.add_argument("--encoders", type=int, default=2500, help="default 2500")
    parser.add_argument("--trials", type=int, default=64, help="default 64")
    parser.add_argument("--records", type=int, default=24, help="images of a shard (24)")
    parser.add_argument("--hidden", type=int, default=64, help="hidden units (64)")
    parser.add_argument("--steps", type=int, default=300, help="Adam steps of an encoder (300)")
    parser.add_argument("--trial-steps", type=int, default=1000, help="of a trial (1000)")
    parser.add_argument("--batch", type=int, default=256, help="of a private step (256)")
    parser.add_argument("--efficiency", type=float, default=0.9, help="assumed (0.9)")
    parser.add_argument("--gigabits", type=float, default=1.0, help="assumed network (1)")
    parser.add_argument("--node-start", type=float, default=0.0, help="assumed seconds (0)")
    args = parser.parse_args()
    counts = (args.encoders, args.trials, args.records, args.hidden, args.steps, args.trial_steps)
    if min(*counts, args.batch) < 1 or args.gigabits <= 0 or not 0 < args.efficiency <= 1:
        parser.error("counts and --gigabits must be positive, --efficiency in (0, 1]")
    args.repeats = 1 if args.quick else 3
    args.empty_tasks = 300 if args.quick else 2000
    args.timed_tasks = 6 if args.quick else 20
    args.checked_tasks = 8 if args.quick else 24

    found = measure(args)
    encoder, trial = make_costs(found, args)
    titles = f"{args.encoders} encoders", f"search of {args.trials} trials"
    tables = {
        titles[0]: predict(args.encoders, encoder),
        titles[1]: predict(args.trials, trial),
    }
    warm = Costs(**{**asdict(encoder), "start": 0.0})  # the workers of the check were up
    check = {
        "tasks": args.checked_tasks,
        "predicted_seconds": wall_seconds(args.checked_tasks, 2, warm),
        "measured_seconds": found["fan_out_seconds_on_2_workers"],
    }
    measured, assumed = statements(found, args)
    measured.append(
        f"check: {check['tasks']} encoders on 2 workers took {check['measured_seconds']:.1f} s; "
        f"this model says {check['predicted_seconds']:.1f} s for free cores"
    )
    if args.out:
        driver = args.encoders * (encoder.per_task + encoder.result_bytes / encoder.bandwidth)
        limits = {
            titles[0]: ("the driver's own time", driver),
            titles[1]: ("one trial alone", trial.start + trial.task),
        }
        draw(args.out, tables, limits, (measured, assumed))
    if args.json:
        rows = {title: [asdict(row) for row in table] for title, table in tables.items()}
        print(
            json.dumps({"measured": found, "assumed": assumed, "check": check, "predicted": rows})
        )
        return
    print("measured here:", *measured, sep="\n  ")
    print("assumed:", *assumed, sep="\n  ")
    print(f"\npredicted{'':<3}{titles[0]:>34}{titles[1]:>36}")
    print(f"{'workers':>9}" + 2 * f"{'wall time':>16}{'speed-up':>10}{'bound':>9}")
    for first, second in zip(*tables.values(), strict=True):
        line = f"{first.workers:>9}"
        for row in (first, second):
            line += f"{_duration(row.seconds):>16}{row.speedup:>10.1f}{row.bound:>9}"
        print(line)
    if args.out:
        print(f"\nplot: {args.out}")


if __name__ == "__main__":
    main()
