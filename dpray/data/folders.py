"""Where things live: what must be kept (`home`) and what can be fetched again (`data_cache`).

DPRAY_HOME and DPRAY_CACHE move them; DPRAY_DATA names a folder that already holds datasets.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from dpray.errors import StorageFailed


def home() -> Path:
    """The folder of runs, ledgers and models. Created readable by its owner only."""
    return _created(_from_environment("DPRAY_HOME") or platformdirs.user_data_path("dpray"), 0o700)


def data_cache() -> Path:
    """The folder of fetched datasets, one subfolder each. May be deleted at any time."""
    default = platformdirs.user_cache_path("dpray") / "data"
    return _created(_from_environment("DPRAY_CACHE") or default, 0o777)


def given_data() -> Path | None:
    """The folder of datasets that the user already has, if DPRAY_DATA names one."""
    return _from_environment("DPRAY_DATA")


def _from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser().absolute() if value else None


def _created(folder: Path, mode: int) -> Path:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(f"cannot create the folder {folder}: {error.strerror}") from None
    return folder
