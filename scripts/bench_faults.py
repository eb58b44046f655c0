"""Kills runs at random and counts what it costs: budget lost, work repeated, weights changed.

One run is left alone. Another, with the same insecure test key, is killed with SIGKILL again and
again (the whole process), or loses Ray Train workers while Ray starts them anew, until it is
finished. Its weights must be those of the first, and its ledger must be charged once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dpray.execute import Result, execute, read_result
from dpray.progress import Bar
from dpray.runs import RunFolder, runs_folder
from dpray.spec import RunSpec

KEY = 11


def spec_of(steps: int) -> RunSpec:
    settings = {"features": "pixels", "batch_size": 300, "steps": steps}
    return RunSpec(method="dp-sgd", dataset="digits", epsilon=3.0, settings=settings)


class Count:
    """A progress bar that leaves the number of steps done in a file, at every step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def __call__(self, label: str, total: int | None) -> Iterator[Bar]:
        self.first = True
        self.done = self.start = 0
        yield self

    def advance(self, count: int = 1) -> None:
        if self.first:  # where the run goes on from
            self.first, self.start = False, count
        self.done += count
        self.path.write_text(f"{self.start} {self.done}")

    def note(self, text: str) -> None:
        pass


def attempt(steps: int, run_id: str, counts: str) -> None:
    """One life of a run, in a process of its own."""
    resume = (runs_folder() / run_id / "spec.json").exists()
    execute(
        spec_of(steps), run_id=run_id, resume=resume, progress=Count(Path(counts)), test_key=KEY
    )


def kill_processes(steps: int, kills: int, folder: Path) -> dict[str, Any]:
    """A run whose process is killed `kills` times at random moments."""
    run, counts, chance = RunFolder(runs_folder() / "killed"), folder / "counts", random.Random(0)
    executed = killed = 0
    while not run.is_finished:
        counts.unlink(missing_ok=True)
        code = f"from bench_faults import attempt; attempt({steps}, 'killed', {str(counts)!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )
        if killed < kills:
            while not counts.exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 2.0))
            killed += process.poll() is None
            process.kill()
        process.wait()
        start, done = map(int, counts.read_text().split()) if counts.exists() else (0, 0)
        executed += done - start
    return {"kills": killed, "steps_run": executed, "result": read_result(run)}


def kill_train_workers(steps: int, kills: int) -> dict[str, Any]:
    """A run on two Ray Train workers, one of which is killed now and then."""
    from dpray.distributed.train import Where, train

    killed: list[int] = []
    over = threading.Event()

    def kill_now_and_then() -> None:
        checkpoints = RunFolder(runs_folder() / "train").checkpoints
        while len(killed) < kills and not over.wait(0.2):
            seen = {path.name for path in checkpoints.glob("train-*")}
            workers = [
                int(path.parent.name)
                for path in Path("/proc").glob("[0-9]*/cmdline")
                if b"RayTrainWorker" in path.read_bytes()
            ]
            if seen and len(workers) == 2:
                os.kill(workers[0], signal.SIGKILL)
                killed.append(workers[0])
                while {p.name for p in checkpoints.glob("train-*")} == seen and not over.wait(0.2):
                    pass  # until the run has moved on

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        result = train(spec_of(steps), Where(workers=2), run_id="train", test_key=KEY)
    finally:
        over.set()
        killer.join()
    return {"kills": len(killed), "steps_run": None, "result": result}


def judge(name: str, outcome: dict[str, Any], reference: Result) -> dict[str, Any]:
    result: Result = outcome["result"]
    entries = result.card.ledger["entries"]
    ours, theirs = result.release.module.state_dict(), reference.release.module.state_dict()
    charged = sum(entry["steps"] for entry in entries)
    run = outcome["steps_run"]
    return {
        "what": name,
        "kills": outcome["kills"],
        "charged_steps": charged,
        "ledger_entries": len(entries),
        "epsilon_lost": round((result.card.epsilon or 0) - (reference.card.epsilon or 0), 9),
        "steps_repeated": None if run is None else run - charged,
        "largest_difference_of_a_weight": max(
            float((ours[key] - theirs[key]).abs().max()) for key in ours
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=10, help="of the whole process")
    parser.add_argument("--worker-kills", type=int, default=2, help="of Ray Train workers, up to 3")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPRAY_HOME"] = folder
        os.environ["DPRAY_CHECKPOINT_SECONDS"] = "0.5"
        torch.set_num_threads(1)
        reference = execute(spec_of(args.steps), run_id="undisturbed", test_key=KEY)
        rows = [judge("process", kill_processes(args.steps, args.kills, Path(folder)), reference)]
        if args.worker_kills:
            outcome = kill_train_workers(args.steps, args.worker_kills)
            rows.append(judge("Ray Train worker", outcome, reference))
    for row in rows:
        if args.json:
            print(json.dumps(row))
        else:
            print("\n".join(f"{name.replace('_', ' '):<32} {value}" for name, value in row.items()))
            print()


if __name__ == "__main__":
    main()
