"""Ray's token in this process: a secret of its own for a local Ray, the user's for any other.

Ray 2.60 guards every cluster with a token. Left alone it writes one into the home folder, which
then decides about every later cluster of that user; a random one that lives only in the
environment of this process and its workers does the same and leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_ours: set[str] = set()


def guard_local() -> None:
    """A new local Ray asks for a token: the user's if one is set, else a random one."""
    if os.environ.get(_MODE, "token").lower() != "token":
        return  # switched off on purpose
    _set(_MODE, "token")
    if not os.environ.get(_TOKEN) and not os.environ.get(_TOKEN_PATH):
        _set(_TOKEN, secrets.token_hex(32))
    _reload()


def use_given() -> None:
    """Whoever sets a token means it to be used; Ray alone wants the mode set as well."""
    if os.environ.get(_TOKEN) or os.environ.get(_TOKEN_PATH):
        _set(_MODE, "token")
    _reload()


def forget() -> None:
    """Takes back what this module set, so that the next cluster is met with a clean slate."""
    for name in _ours:
        os.environ.pop(name, None)
    _ours.clear()
    _reload()


def _set(name: str, value: str) -> None:
    if not os.environ.get(name):
        os.environ[name] = value
        _ours.add(name)


def _reload() -> None:
    # Both are read once and kept; without this a change of the environment is not seen.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
