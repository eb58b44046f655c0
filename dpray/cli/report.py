"""`dpray report`: static pages about all recorded runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dpray.cli.output import print_json, say
from dpray.errors import BadInput

_EXAMPLES = """\
examples:
  dpray report                                   everything, into report/index.html
  dpray report --dataset mnist --out for-paper   the runs on mnist only

Runs are read from the MLflow store that MLFLOW_TRACKING_URI names, or from dpray's own.
comparison.html beside the page holds all methods: epsilon against accuracy, core-minutes, and what
others published. Neither needs a network: the folder can be opened, sent or served as it is.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        description="Static HTML pages: accuracy, epsilon, cost, samples and where the budget\n"
        "went, with the privacy card of every run, and a comparison of all methods.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--experiment", metavar="NAME", help="the MLflow experiment (default: the one of dpray)"
    )
    parser.add_argument("--dataset", metavar="D", help="only runs on this dataset")
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="DIR", help="default: report/"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=_report)


def _report(args: argparse.Namespace) -> int:
    # Before the store is read, which may take a while.
    if args.out.exists() and not args.out.is_dir():
        raise BadInput(f"--out {args.out} is a file: name a folder for the report")
    from dpray.reporting.page import COMPARISON
    from dpray.reporting.report import write_report
    from dpray.tracking.history import history

    runs = history(args.experiment, args.dataset, say=say)
    path = write_report(runs, args.out)
    if args.json:
        compared = path.with_name(COMPARISON)
        print_json({"page": str(path), "comparison": str(compared), "runs": len(runs)})
    else:
        print(path)
    return 0
