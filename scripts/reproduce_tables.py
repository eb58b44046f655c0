"""Runs the rows of a published table, keeps what is finished, and prints the table.

    python scripts/reproduce_tables.py seed0
    python scripts/reproduce_tables.py seed0 --group noise --only 'noise 0.1' --seeds 1
    python scripts/reproduce_tables.py seed0 --print

Stop it at any time: what is finished is not run again, and the run under way is taken up where it
stopped. Table and pictures go to the results folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tables import TABLES, find
from tables.kept import Place, run_once
from tables.pictures import draw_curves, draw_grids
from tables.rows import BUDGET, EVERY_GROUP, Row, Table, chosen
from tables.summary import markdown, measure

from dpray.errors import BadInput, DprayError
from dpray.progress import silent, terminal
from dpray.storage import clear_errors, write_whole


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def seeds_of(row: Row, args: argparse.Namespace) -> Sequence[int]:
    return row.seeds if args.seeds is None else range(args.seeds)


def places(rows: Sequence[Row], args: argparse.Namespace) -> list[Place]:
    """Every row's first seed before any row's second: the table fills evenly."""
    kept = args.out / args.table
    found = [Place(row, seed, kept) for row in rows for seed in seeds_of(row, args)]
    return sorted(found, key=lambda place: place.seed)


def run_here(rows: Sequence[Row], args: argparse.Namespace) -> int:
    """Runs what is not finished. One row that fails does not keep the others from running."""
    failed = 0
    progress = silent if args.quiet else terminal
    for place in places(rows, args):
        if place.read() is not None:
            continue
        note(f"{place.row.label}, seed {place.seed}")
        try:
            run_once(place, track=not args.no_tracking, progress=progress, say=note)
        except DprayError as error:
            failed += 1
            note(f"{place.row.label}, seed {place.seed}: {error}")
    return 2 if failed else 0


def run_in_processes(rows: Sequence[Row], args: argparse.Namespace) -> int:
    """One process a row, `--jobs` at a time; the first word of each is this very script."""

    def run_row(row: Row) -> int:
        words = [args.table, "--dataset", args.dataset, "--out", str(args.out), "--only", row.label]
        words += ["--group", EVERY_GROUP, "--threads", str(args.threads), "--quiet", "--no-report"]
        words += ["--no-tracking"] if args.no_tracking else []
        words += ["--seeds", str(args.seeds)] if args.seeds is not None else []
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        return subprocess.run([sys.executable, __file__, *words], env=environment).returncode

    waiting = [row for row in rows if any(p.read() is None for p in places([row], args))]
    with ThreadPoolExecutor(args.jobs) as pool:
        return max(pool.map(run_row, waiting), key=abs, default=0)


def report(table: Table, rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Prints what is there, all rows of it, and writes it beside its pictures."""
    measured = [measure(row, seeds_of(row, args), args.out / table.name) for row in rows]
    name = table.name if args.dataset == table.datasets[0] else f"{table.name}-{args.dataset}"
    text = markdown(table, args.dataset, measured)
    curves, grids = args.out / f"{name}-curves.png", args.out / f"{name}-grids.png"
    pictures = ""
    if draw_curves(table, args.dataset, measured, curves):
        pictures += f"\n![Accuracy against epsilon]({curves.name})\n"
    if draw_grids(table, args.dataset, measured, grids):
        pictures += f"\n![Synthetic images of every class]({grids.name})\n"
    write_whole(args.out / f"{name}.md", (text + pictures).encode())
    print(text, end="")
    note(f"written to {args.out / name}.md")


def list_rows(rows: Sequence[Row], args: argparse.Namespace) -> None:
    for row in rows:
        own = places([row], args)
        done = sum(place.read() is not None for place in own)
        print(f"{row.group:<8} {done}/{len(own)} runs  {row.label}")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help=f"one of: {', '.join(TABLES)}")
    parser.add_argument("--dataset", help="default: the one the source used")
    parser.add_argument("--group", default=BUDGET, help="of rows to run, or all (%(default)s)")
    parser.add_argument("--only", metavar="LABEL", help="a row's label or a regular expression")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1 (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="rows at the same time (1)")
    parser.add_argument("--threads", type=int, default=1, help="of one run (1)")
    parser.add_argument("--list", action="store_true", help="show the rows and run nothing")
    parser.add_argument("--print", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--no-report", action="store_true", help="run and print nothing")
    parser.add_argument("--no-tracking", action="store_true", help="do not write to MLflow")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(words)
    try:
        return reproduce(args)
    except DprayError as error:
        note(f"reproduce_tables: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def reproduce(args: argparse.Namespace) -> int:
    table = find(args.table)
    args.dataset = args.dataset or table.datasets[0]
    if args.dataset not in table.datasets:
        choices = ", ".join(table.datasets)
        raise BadInput(f"{table.name} has no rows on {args.dataset!r}; choose from: {choices}")
    for name in ("seeds", "jobs", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise BadInput(f"--{name} {value} is out of range: it must be at least 1")
    every = table.rows(args.dataset)
    rows = chosen(every, args.group, args.only)
    if args.list:
        list_rows(rows, args)
        return 0
    with clear_errors(args.out):
        (args.out / table.name).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    code = 0
    if not args.print:
        code = run_in_processes(rows, args) if args.jobs > 1 else run_here(rows, args)
    if not args.no_report:
        report(table, every, args)
    return code


if __name__ == "__main__":
    sys.exit(main())
