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
    and cut is lost: some lines at worst, once in many megabytes. Of one that wrote more than twice `max_bytes`
    since the last look only the end is kept. Where the disk has no room for a copy the old lines are lost too:
    that makes the room.
    """
    try:
        size = log.stat().st_size
        if size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            os.replace(older, log.with_name(f"{log.name}.{number + 1}"))
    copy = log.with_name(f"{log.name}.1")
    try:
        _copy_end(log, copy, from_offset=max(size - 2 * max_bytes, 0))
    except OSError:
        copy.unlink(missing_ok=True)
    os.truncate(log, 0)
    return True


def _copy_end(log: Path, copy: Path, *, from_offset: int) -> None:
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with log.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        source.seek(from_offset)
        shutil.copyfileobj(source, target)


def tail(log: Path, lines: int = 8, *, max_bytes: int = 16 * 1024) -> list[str]:
    """Return the last lines of a log; none if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - max_bytes, 0))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
