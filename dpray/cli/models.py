"""`dpray models`: list what is registered, show a privacy card, promote a version."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shlex
from typing import TYPE_CHECKING, Any

from dpray.cli.output import print_json, print_table

if TYPE_CHECKING:
    from dpray.tracking.registry import ModelRow

_EXAMPLES = """\
examples:
  dpray models                                   everything, most accurate first
  dpray models --dataset mnist --max-epsilon 3   what is there for mnist at epsilon 3 or less
  dpray models --sort epsilon --json             for a program to read
  dpray models show dpray-mnist-dp-sgd           the privacy card of its best or latest version
  dpray models promote dpray-mnist-dp-sgd/2      call version 2 the champion

Models are kept in the MLflow store that MLFLOW_TRACKING_URI names, or in dpray's own.
In Python: mlflow.pyfunc.load_model("models:/dpray-mnist-dp-sgd/2").predict(images)
"""
_REFERENCE = "NAME, NAME/VERSION or NAME@alias; a bare NAME is its best, champion or latest"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "models",
        description="Registered models with what they cost in privacy and what they are worth.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", metavar="D", help="only models of this dataset")
    parser.add_argument("--method", metavar="M", help="only models of this method")
    parser.add_argument("--max-epsilon", metavar="E", type=float, help="only epsilon E or less")
    parser.add_argument(
        "--sort",
        choices=("accuracy", "epsilon", "created"),
        default="accuracy",
        help="most accurate, least epsilon or newest first (default: accuracy)",
    )
    parser.add_argument(
        "--fit-for-release", action="store_true", help="only models whose card has no objection"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=list_command)
    actions = parser.add_subparsers(title="actions", metavar="{show,promote}")
    _add_show(actions)
    _add_promote(actions)


def _add_show(actions: Any) -> None:
    show = actions.add_parser(
        "show",
        help="print the privacy card of a model",
        description="The privacy card of a model, and how to load it.",
        epilog="example:\n  dpray models show dpray-mnist-dp-sgd@champion\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("model", metavar="NAME", help=_REFERENCE)
    _add_json(show)
    show.set_defaults(handler=show_command)


def _add_promote(actions: Any) -> None:
    promote = actions.add_parser(
        "promote",
        help="give a version an alias, such as champion",
        description="Gives a version an alias. Refuses one that its card calls unfit for release.",
        epilog="example:\n  dpray models promote dpray-mnist-dp-sgd/2 --alias champion\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    promote.add_argument("model", metavar="NAME/VERSION", help=_REFERENCE)
    promote.add_argument("--alias", default="champion", help="the alias to set (default: champion)")
    promote.add_argument(
        "--force", action="store_true", help="even where the card says: not fit for release"
    )
    _add_json(promote)
    promote.set_defaults(handler=promote_command)


def _add_json(parser: argparse.ArgumentParser) -> None:
    # Suppressed: its absence here must not undo a --json given before the action.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object"
    )


def list_command(args: argparse.Namespace) -> int:
    from dpray.tracking.registry import list_models

    rows = list_models(
        dataset=args.dataset,
        method=args.method,
        max_epsilon=args.max_epsilon,
        sort=args.sort,
        fit_only=args.fit_for_release,
    )
    if args.json:
        print_json({"models": [as_json(row) for row in rows]})
    elif rows:
        _print_rows(rows)
    else:
        print(_nothing(args))
    return 0


def show_command(args: argparse.Namespace) -> int:
    from dpray.tracking.registry import card_of, find
    from dpray.tracking.store import shown_uri

    row = find(args.model)
    card = card_of(row)
    if args.json:
        shown = {"model": as_json(row), "tracking_uri": shown_uri(), "card": card.to_json()}
        print_json(shown)
        return 0
    print(card.text())
    print("Load it")
    print(f"  export MLFLOW_TRACKING_URI={shlex.quote(shown_uri())}")
    print(f"  python -c 'import mlflow; model = mlflow.pyfunc.load_model(\"{row.uri}\")'")
    return 0


def promote_command(args: argparse.Namespace) -> int:
    from dpray.tracking.registry import promote

    row = promote(args.model, args.alias, force=args.force)
    if args.json:
        print_json({"model": as_json(row)})
    else:
        print(f"{row.reference} is now {row.name}@{args.alias}")
    return 0


def _print_rows(rows: list[ModelRow]) -> None:
    header = ("MODEL", "VERSION", "EPSILON", "DELTA", "ACCURACY", "RELEASE", "CREATED", "ALIASES")
    cells = (
        (
            row.name,
            row.version,
            row.epsilon,
            row.delta,
            row.accuracy,
            row.fit_for_release,
            row.created.astimezone().strftime("%Y-%m-%d %H:%M"),
            ", ".join(row.aliases),
        )
        for row in rows
    )
    print_table(header, cells)


def as_json(row: ModelRow) -> dict[str, Any]:
    """A row as JSON, which has no infinity: epsilon null means no privacy."""
    return {
        **dataclasses.asdict(row),
        "epsilon": row.epsilon if math.isfinite(row.epsilon) else None,
        "created": row.created.isoformat(),
        "uri": row.uri,
    }


def _nothing(args: argparse.Namespace) -> str:
    """Why the table is empty: nothing there yet, or nothing that matches."""
    from dpray.tracking.registry import list_models
    from dpray.tracking.store import shown_uri

    rows = list_models()
    if not rows:
        return f"No models in {shown_uri()} yet. `dpray run` registers what it trains."
    datasets = ", ".join(sorted({row.dataset for row in rows}))
    methods = ", ".join(sorted({row.method for row in rows}))
    return f"None of {len(rows)} models matches. Datasets: {datasets}. Methods: {methods}."
