"""What a worker needs to find the same data and the same run folders as the driver."""

from __future__ import annotations

import os

_FOLDERS = ("DPRAY_HOME", "DPRAY_CACHE", "DPRAY_DATA")
_SETTINGS = ("DPRAY_CHECKPOINT_SECONDS",)


def environment_for_workers() -> dict[str, str]:
    folders = {k: os.path.abspath(os.environ[k]) for k in _FOLDERS if k in os.environ}
    return folders | {k: os.environ[k] for k in _SETTINGS if k in os.environ}
