"""MLflow, imported without its chatter: no telemetry, no progress bars, no INFO lines.

A command with --json owes its caller exactly one object on stdout, and a private project owes
its users that nothing is reported to third parties unless they ask for it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

# Set before the first import, where MLflow reads them. A user's own choice stands.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def quiet_mlflow() -> Any:
    """The module `mlflow`. Its import takes seconds, so it is made on use and not before."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow
