"""Is there room where the state directory is? Without it the database, keys and logs cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

#: With less an operator must act: what ends, and what it cost, is still to be written.
LOW_BYTES = 256 * 2**20


def look(state_dir: Path) -> tuple[bool, str]:
    """Return whether all is well, and what is told of it."""
    found = os.statvfs(state_dir)
    return told(found.f_bavail * found.f_frsize, read_only=bool(found.f_flag & os.ST_RDONLY))


def told(free_bytes: int, *, read_only: bool) -> tuple[bool, str]:
    if read_only:
        return False, "the state directory is on a disk that is read-only"
    where = "free where the state directory is"
    if free_bytes < LOW_BYTES:
        return False, f"{free_bytes >> 20} MiB {where}: make room, since without it nothing can be written"
    return True, f"{free_bytes / 2**30:.1f} GiB {where}"
