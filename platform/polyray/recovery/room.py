"""Tells a disk without room as what it is, whoever finds out: a file that is written, or SQLite."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from polyray.core.errors import PolyrayError, Unavailable

#: On a full disk SQLite fails with the second where it would map a journal's index into memory.
_SQLITE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_SYSTEM = frozenset({errno.ENOSPC, errno.EDQUOT})


def lacks_room(error: BaseException | None) -> bool:
    """Say whether an error comes of a disk that took no more."""
    while error is not None:
        found = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(found, OSError) and found.errno in _SYSTEM:
            return True
        if isinstance(found, sqlite3.Error) and getattr(found, "sqlite_errorcode", 0) & 0xFF in _SQLITE:
            return True
        error = error.__cause__
    return False


@contextmanager
def room_in(directory: Path, *, way_out: str) -> Iterator[None]:
    """Name the directory and the way out where what is done in it finds no room.

    Raises:
        Unavailable
    """
    try:
        yield
    except (OSError, sqlite3.Error, PolyrayError) as error:
        if not lacks_room(error):
            raise
        told = error.message if isinstance(error, PolyrayError) else str(error)
        raise Unavailable(f"there is no room in {directory}: {told}", hint=way_out) from error
