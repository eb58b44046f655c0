"""`dpray card`: read a privacy card, and check it against its own events."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dpray.cli.output import print_json
from dpray.privacy.card import Card, verify


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("card")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, handler, text in (
        ("show", _show, "print the card as one page"),
        ("verify", _verify, "compute epsilon and the ledger head again from the card's events"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("file", type=Path, metavar="FILE", help="a card.json")
        action.add_argument("--json", action="store_true", help="print one JSON object")
        action.set_defaults(handler=handler)


def _show(args: argparse.Namespace) -> int:
    card = Card.read(args.file)
    if args.json:
        print_json(card.to_json())
    else:
        print(card.text(), end="")
    return 0


def _verify(args: argparse.Namespace) -> int:
    card = Card.read(args.file)
    checked = verify(card)
    if args.json:
        print_json({"verified": True, "epsilon": checked.recomputed, "head": checked.ledger_head})
        return 0
    epsilon = "infinite" if checked.recomputed is None else f"{checked.recomputed:.6f}"
    what = "events cost" if card.search is None else "search, from first to last, costs"
    print(f"verified: the card's {what} epsilon {epsilon}, as it states")
    print(f"ledger head {checked.ledger_head}")
    return 0
