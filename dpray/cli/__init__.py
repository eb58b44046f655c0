"""The command line: words to calls. Each command is a file beside this one.

What goes wrong on purpose is a `DprayError`: one line on standard error and exit code 2.
Results go to standard output, everything else (bars, notes, warnings) to standard error.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from dpray import __version__
from dpray.errors import DprayError

_EPILOG = """\
a first look:
  dpray run dp-sgd --dataset mnist --epsilon 3
  dpray models
  dpray plan --records 60000 --batch-size 256 --epochs 15 --epsilon 1
  dpray tune dp-sgd --dataset mnist --epsilon 1 --trials 40 --charge select
"""


# Each command: the file it is in, and what it does. A file is loaded when its command is named,
# since most of them load torch, which takes seconds.
_COMMANDS = {
    "run": ("run", "train one model under a budget"),
    "resume": ("run", "go on with a run that was interrupted"),
    "tune": ("tune", "search for settings under a budget, and say what the search costs"),
    "submit": ("submit", "run a dpray command on a cluster"),
    "jobs": ("submit", "list, follow and stop the jobs of a cluster"),
    "plan": ("plan", "noise, steps and epsilon before anything runs"),
    "methods": ("methods", "list the methods, or one method's settings and presets"),
    "data": ("data", "fetch and list datasets"),
    "models": ("models", "list registered models, show their privacy cards, promote one"),
    "sample": ("sample", "draw images from a synthesizer"),
    "evaluate": ("evaluate", "measure a model, or synthetic images from a file"),
    "card": ("card", "show or verify a privacy card"),
    "report": ("report", "write pages about all recorded runs"),
}


class _Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line that says where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Commands:
    """Where a command's file adds its parsers: what a command does is said in one place."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._actions = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add_parser(self, name: str, **words: Any) -> argparse.ArgumentParser:
        return self._actions.add_parser(name, help=_COMMANDS[name][1], **words)


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command that `words` begin with; of other commands it knows the names."""
    parser = _Parser(
        prog="dpray",
        description="Differentially private training, synthesis and tuning on Ray, "
        "with a budget that is true.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dpray {__version__}")
    commands = _Commands(parser)
    wanted, _ = _COMMANDS.get(words[0] if words else "", ("", ""))
    loaded = set()
    for name, (file, _) in _COMMANDS.items():
        if file != wanted:
            commands.add_parser(name)
        elif file not in loaded:
            loaded.add(file)
            import_module(f"dpray.cli.{file}").add_parser(commands)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if words is None else words)
    try:
        args = make_parser(arguments).parse_args(arguments)
        return int(args.handler(args))
    except DprayError as error:
        print(f"dpray: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left: nothing to say and nobody to say it to
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"dpray: the disk is full: cannot write {error.filename}", file=sys.stderr)
            return 2
        raise
