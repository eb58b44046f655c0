"""The worker processes of the Ray that this process started, by the titles that Ray gives them."""

import contextlib
import os
from pathlib import Path


def own_workers(*titles: bytes) -> list[int]:
    """Those whose command line holds one of `titles`; never those of another Ray on the machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if any(title in path.read_bytes() for title in titles) and _is_below_us(pid):
                found.append(pid)
    return found


def _is_below_us(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        status = Path(f"/proc/{pid}/stat").read_text()
        pid = int(status.rpartition(")")[2].split()[1])
    return False
