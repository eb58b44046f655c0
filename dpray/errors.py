"""One family of errors. Each carries one finished sentence, so it pickles and prints as is.

The message holds the value, the rule and the choices. The command line prints it on one line
and exits with `exit_code`; a traceback that reaches a user is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DprayError(Exception):
    """Anything dpray refuses on purpose. The single argument is what the user reads."""

    exit_code = 2


class BadInput(DprayError):
    """The user named or gave something that cannot be used: a method, a setting, a number."""


class BadData(DprayError):
    """A dataset is missing, unreadable, corrupt or not of the declared form."""


class BudgetExceeded(DprayError):
    """A release would cost more than what is left. Nothing was charged and nothing was read."""


class NotPrivate(DprayError):
    """A model or a computation cannot be given the guarantee it would claim."""


class Diverged(DprayError):
    """Training ended in weights that are not numbers. Its budget is spent all the same."""


class NoTrialWorked(DprayError):
    """A search ended and none of its trials has a score."""


class LedgerDamaged(DprayError):
    """The ledger, or what refers to it, is not what was written. Nothing may be spent on it."""


class CannotResume(DprayError):
    """The run cannot be taken up again: changed data, changed settings, or nothing to resume."""


class StorageFailed(DprayError):
    """The disk is full, or a folder cannot be written. What was there before is intact."""


class TrackingFailed(DprayError):
    """The MLflow store cannot be reached, or refuses what it was given."""


class ClusterFailed(DprayError):
    """Ray cannot be reached, or has not the resources asked for."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> BadInput:
    """The error for a name that is not in a table: says what is, and guesses what was meant."""
    known = sorted(choices)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return BadInput(f"no {kind} {name!r}{hint}; choose from: {', '.join(known)}")
