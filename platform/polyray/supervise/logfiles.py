"""Bounded logs: a file over its size is copied aside and cut, while its writer keeps appending to it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 16 * 2**20
KEPT = 3


def rotate(log: Path, *, max_bytes: int = MAX_LOG_BYTES, kept: int = KEPT) -> bool:
    """Rotate `NAME.log` to `NAME.log.1` ... if it is over `max_bytes`; return whether it was.

    The writer holds the file open for appending, so it goes on at the new end. What it writes between copy
    and cut is lost: some lines at worst, once in many megabytes. Where the disk has no room for a copy the old
    lines are lost too: that makes the room.
    """
    try:
        if log.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            os.replace(older, log.with_name(f"{log.name}.{number + 1}"))
    copy = log.with_name(f"{log.name}.1")
    try:
        shutil.copy(log, copy)  # with its mode: 0600
    except OSError:
        copy.unlink(missing_ok=True)
    os.truncate(log, 0)
    return True


def tail(log: Path, lines: int = 8, *, max_bytes: int = 16 * 1024) -> list[str]:
    """Return the last lines of a log; none if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - max_bytes, 0))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
