"""The command line: words to calls. Each command is a file beside this one.

What goes wrong on purpose is a `DprayError`: one line on standard error and exit code 2.
Results go to standard output, everything else (bars, notes, warnings) to standard error.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from typing import NoReturn

from dpray import __version__
from dpray.errors import DprayError

_EPILOG = """\
a first look:
  dpray run dp-sgd --dataset mnist --epsilon 3
  dpray models
  dpray plan --records 60000 --batch-size 256 --epochs 15 --epsilon 1
  dpray tune dp-sgd --dataset mnist --epsilon 1 --trials 40 --charge select
"""


class _Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line that says where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    # Imported here so that `dpray --version` does not load torch.
    from dpray.cli import (
        card,
        data,
        evaluate,
        methods,
        models,
        plan,
        report,
        run,
        sample,
        submit,
        tune,
    )

    parser = _Parser(
        prog="dpray",
        description="Differentially private training, synthesis and tuning on Ray, "
        "with a budget that is true.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dpray {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    everything = (run, tune, submit, plan, methods, data, models, sample, evaluate, card, report)
    for module in everything:
        module.add_parser(commands)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if words is None else words)
    if arguments == ["--version"]:
        print(f"dpray {__version__}")
        return 0
    try:
        args = make_parser().parse_args(arguments)
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
