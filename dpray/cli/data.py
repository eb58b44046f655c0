"""`dpray data`: fetch datasets, and list what there is."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from dpray.cli.output import print_json, print_table, say

_EPILOG = """\
examples:
  dpray data fetch mnist fashion-mnist
  dpray data fetch mnist --from ~/datasets     (a folder that holds the IDX files)
  dpray data list

Your own data need no fetching: give --dataset a .npz with `images` and `labels`, or a folder
of class folders of images.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    fetch = actions.add_parser("fetch", help="download into the cache, checksums checked")
    fetch.add_argument("names", nargs="+", metavar="NAME")
    fetch.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="look here first")
    fetch.set_defaults(handler=_fetch)
    show = actions.add_parser("list", help="what there is, and what is on disk")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.set_defaults(handler=_list)


def _fetch(args: argparse.Namespace) -> int:
    from dpray.data.datasets import fetch

    for name in args.names:
        fetch(name, from_folder=args.folder, say=say)
    return 0


def _list(args: argparse.Namespace) -> int:
    from dpray.data.catalogue import catalogue

    rows = catalogue()
    if args.json:
        print_json({"datasets": [dataclasses.asdict(row) for row in rows]})
        return 0
    print_table(
        ("dataset", "channels x height x width", "classes", "train", "test", "on disk", "source"),
        [
            (
                row.name,
                "x".join(map(str, row.shape)),
                len(row.class_names),
                row.num_train,
                row.num_test,
                row.on_disk,
                row.source,
            )
            for row in rows
        ],
    )
    return 0
