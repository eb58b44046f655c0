"""What Ray says on its own account: never on standard output, and nothing at all when quiet.

Ray prints the death of a worker, and with `log_to_driver` all that workers print, to standard
output, whatever it is told. That belongs to `--json`: so it goes to standard error, or, when
quiet, to the debug log. What matters of it arrives as a note on a bar or as a `ClusterFailed`.
"""

from __future__ import annotations

import logging
from typing import Any

from ray._private import worker

_log = logging.getLogger(__name__)
_print = worker.print_to_stdstream


def keep_off_standard_output(quiet: bool) -> None:
    """Takes effect for the connection that is made next."""

    def to_stderr(data: dict[str, Any], ignore_prefix: bool) -> None:
        if not quiet:
            _print({**data, "is_err": True}, ignore_prefix)
            return
        for line in data["lines"]:
            _log.debug("%s", line)

    worker.print_to_stdstream = to_stderr
