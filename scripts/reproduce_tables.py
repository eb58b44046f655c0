"""Runs the rows of a published table, keeps what is finished, and prints the table.

    python scripts/reproduce_tables.py seed0
    python scripts/reproduce_tables.py seed0 --group noise --only 'noise 0.1' --seeds 1
    python scripts/reproduce_tables.py seed0 --print
    python scripts/reproduce_tables.py psg --group all --jobs 2
    python scripts/reproduce_tables.py dpmi --group clip --seeds 1
    python scripts/reproduce_tables.py baselines --dataset fashion-mnist --only '^vaegm'

Stop it at any time: what is finished is not run again, and the run under way is taken up where it
stopped. Table and pictures go to the results folder. What was measured for docs/results.md is kept
with the project: these print it, and add the seeds that are missing:

    python scripts/reproduce_tables.py baselines --out docs/rows --print
    python scripts/reproduce_tables.py baselines --out docs/rows

What rows released can be measured further, without spending anything. Each network that is
trained for it is kept, so these can be stopped as well:

    python scripts/reproduce_tables.py psg --architectures --epochs 300
    python scripts/reproduce_tables.py psg --architectures resnet18,vgg11 --epochs 50 --networks 1
    python scripts/reproduce_tables.py match --architectures convnet --networks 1 --releases 3
    python scripts/reproduce_tables.py psg --curves --group all --epochs 300

--architectures trains other networks on the images of the rows that name some. 1,000 epochs, as
published, take hours for the large ones without a GPU: the table says what each was given, and
shows those with the most epochs. --curves measures the snapshots on the way of a small set, for
a picture of accuracy against epsilon spent.

With --jobs N the runs, every seed one of its own, and the networks are jobs of a local Ray pool.
--address sends them to a cluster: it decides how many run at once, and the results folder,
DPRAY_HOME and this script must lie at the same path on all its nodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tables import TABLES, architectures, continual, convergence, find
from tables.inversions import ready_public_models
from tables.jobs import How, Job, RunJob, Workers, note
from tables.kept import Place
from tables.pictures import draw_curves, draw_grids
from tables.rows import BUDGET, PUBLISHED_EPOCHS, Figure, Row, Table, chosen
from tables.summary import Measured, markdown, measure

from dpray.errors import BadInput, DprayError
from dpray.storage import clear_errors, write_whole

_EVERY_ARCHITECTURE = "all"


def _curves(table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path) -> bool:
    # Accuracy after several tasks is another quantity: it has a picture of its own.
    at_once = [measured for measured in rows if not continual.after_tasks(measured)]
    return draw_curves(table, dataset, at_once, path)


def _grids(table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path) -> bool:
    return draw_grids(table, dataset, rows, path)


def _convergence(
    table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path
) -> bool:
    return convergence.draw(table, dataset, [measured.row for measured in rows], kept, path)


def _continual(
    table: Table, dataset: str, rows: Sequence[Measured], kept: Path, path: Path
) -> bool:
    return continual.draw(table, dataset, rows, path)


_FIGURES = {
    "curves": Figure("Accuracy against epsilon", _curves),
    "grids": Figure("Synthetic images of every class", _grids),
    "convergence": Figure("Accuracy against epsilon spent, on the way", _convergence),
    "continual": Figure("Accuracy after each task", _continual),
}


def seeds_of(row: Row, args: argparse.Namespace) -> Sequence[int]:
    return row.seeds if args.seeds is None else range(args.seeds)


def places(rows: Sequence[Row], args: argparse.Namespace) -> list[Place]:
    """Every row's first seed before any row's second: the table fills evenly."""
    kept = args.out / args.table
    found = [Place(row, seed, kept) for row in rows for seed in seeds_of(row, args)]
    return sorted(found, key=lambda place: place.seed)


def jobs_of(rows: Sequence[Row], args: argparse.Namespace) -> list[Job]:
    """What is asked for and not kept yet: networks of finished rows, or else runs of rows."""
    if args.architectures is None and not args.curves:
        runs = [RunJob(place) for place in places(rows, args) if place.read() is None]
        return [*runs, *find(args.table).besides(rows, args.out / args.table)]
    folder, wanted = args.out / args.table, []
    if args.architectures is not None:
        named = args.architectures.split(",")
        only = () if named == [_EVERY_ARCHITECTURE] else named
        wanted += architectures.trainings(
            rows,
            folder,
            only=only,
            networks=args.networks,
            epochs=args.epochs,
            releases=args.releases,
        )
    if args.curves:
        wanted += convergence.trainings(rows, folder, epochs=args.epochs or PUBLISHED_EPOCHS)
    if not wanted:
        note("nothing to train: no finished row here names architectures or keeps snapshots")
    for row in dict.fromkeys(t.place.row.label for t in wanted if t.place.read() is None):
        note(f"{row}: has not run yet, left out")
    return [t for t in wanted if t.place.read() is not None and not t.is_kept()]


def report(table: Table, rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Prints what is there, all rows of it, and writes it beside its pictures."""
    measured = [measure(row, seeds_of(row, args), args.out / table.name) for row in rows]
    name = table.name if args.dataset == table.datasets[0] else f"{table.name}-{args.dataset}"
    kept = args.out / table.name
    text = markdown(table, args.dataset, measured)
    text += architectures.markdown(rows, kept) + continual.markdown(measured)
    pictures = ""
    for kind, figure in {**_FIGURES, **table.figures}.items():
        path = args.out / f"{name}-{kind}.png"
        if figure.draw(table, args.dataset, measured, kept, path):
            pictures += f"\n![{figure.title}]({path.name})\n"
    write_whole(args.out / f"{name}.md", (text + pictures).encode())
    print(text, end="")
    note(f"written to {args.out / name}.md")


def list_rows(rows: Sequence[Row], args: argparse.Namespace) -> None:
    for row in rows:
        own = places([row], args)
        done = sum(place.read() is not None for place in own)
        print(f"{row.group:<9} {done}/{len(own)} runs  {row.label}")


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
    parser.add_argument("--jobs", type=int, default=1, help="at the same time, on Ray (1: no Ray)")
    parser.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster for the jobs")
    parser.add_argument("--threads", type=int, default=1, help="of one job (1)")
    parser.add_argument(
        "--architectures",
        nargs="?",
        const=_EVERY_ARCHITECTURE,
        metavar="NAMES",
        help="train these (default: all) on what rows released, instead of running rows",
    )
    parser.add_argument(
        "--curves", action="store_true", help="measure the snapshots, instead of running rows"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="of --architectures and --curves (1,000 as published; on drawn images 3)",
    )
    parser.add_argument(
        "--networks",
        type=int,
        default=architectures.NETWORKS,
        metavar="N",
        help="of each architecture (%(default)s, as published)",
    )
    parser.add_argument(
        "--releases",
        type=int,
        default=1,
        metavar="N",
        help="of a row's seeds, on which --architectures trains (%(default)s: the first)",
    )
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
        note("stopped; what is finished is kept: start it again to go on")
        return 130


def reproduce(args: argparse.Namespace) -> int:
    table = find(args.table)
    args.dataset = args.dataset or table.datasets[0]
    if args.dataset not in table.datasets:
        choices = ", ".join(table.datasets)
        raise BadInput(f"{table.name} has no rows on {args.dataset!r}; choose from: {choices}")
    for name in ("seeds", "jobs", "threads", "epochs", "networks", "releases"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise BadInput(f"--{name} {value} is out of range: it must be at least 1")
    every = table.rows(args.dataset)
    rows = chosen(every, args.group, args.only)
    if args.list:
        list_rows(rows, args)
        return 0
    args.out = args.out.absolute()  # workers start from other folders
    with clear_errors(args.out):
        (args.out / table.name).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    failed = 0
    if not args.print:
        workers = Workers(args.jobs, args.threads, args.address)
        how = How(track=not args.no_tracking, quiet=args.quiet)
        jobs = jobs_of(rows, args)
        ready_public_models([j.place.row for j in jobs if isinstance(j, RunJob)], workers, how)
        failed = workers.carry_out(jobs, how)
    if not args.no_report:
        report(table, every, args)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
