"""`dpray methods`: what can be run, and the settings and presets of one method."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from dpray.cli.output import print_table


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("methods")
    parser.add_argument("method", nargs="?", metavar="METHOD")
    parser.set_defaults(handler=_methods)


def _methods(args: argparse.Namespace) -> int:
    from dpray import methods

    if args.method is None:
        rows = [
            (name, "yes" if kind.private else "NO", kind.summary, kind.paper)
            for name, kind in methods.table().items()
        ]
        print_table(("method", "private", "what it is", "paper"), rows)
        return 0
    kind = methods.find(args.method)
    hints = typing.get_type_hints(kind)
    print(f"{args.method}: {kind.summary} ({kind.paper})\n")
    print_table(
        ("setting", "default", "type"),
        [(f.name, _default(f), _type(hints[f.name])) for f in dataclasses.fields(kind)],
    )
    presets = getattr(kind, "presets", {})
    if presets:
        print()
        on_gpu = getattr(kind, "gpu_preset", None)
        print_table(
            ("preset", "what it sets", "chosen by itself"),
            [
                (name, _words(settings), "where there is a GPU" if name == on_gpu else None)
                for name, settings in presets.items()
            ],
        )
    return 0


def _words(settings: Mapping[str, Any]) -> str:
    """As one would give them to --set."""
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "the defaults"


def _default(field: dataclasses.Field[Any]) -> str:
    return "chosen for you" if field.default is None else str(field.default)


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    options = typing.get_args(hint) or (hint,)
    return " | ".join("none" if o is type(None) else o.__name__ for o in options)
