"""SQLite as the store: how a connection is made and bounded, and what its refusals mean.

Its journal (the write-ahead log) shrinks when the last reader of old pages ends. A reader that does not end,
such as a backup that hangs, would let it grow until the disk is full, and then nothing else could write either.
So it has a limit, beyond which writes are refused and say why.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from polyray.core.errors import Unavailable

#: The journal is cut back to this size whenever it can begin anew.
KEPT_JOURNAL_BYTES = 64 * 2**20
#: With a longer one nothing is written.
MAX_JOURNAL_BYTES = 2**30
#: How `BEGIN` is said, and for how long it may wait for a lock.
BEGIN, WAIT_MS = "polyray_begin", "polyray_wait_ms"

_RESTORE = "stop the platform and bring back a backup: 'polyray restore'"


def engine_of(url: URL, *, lock_seconds: float, kept: int, most: int) -> Engine:
    """Return an engine that waits `lock_seconds` for a lock and for a free connection of at most `most`.

    Raises:
        Unavailable: if its file cannot be made.
    """
    path = url.database
    if path and path != ":memory:":
        _create_private(Path(path))
    # Opening a connection costs more than most reads; a session has one to itself while it lasts.
    engine = create_engine(
        url,
        pool_size=kept,
        max_overflow=most - kept,
        pool_timeout=lock_seconds,
        hide_parameters=True,  # they are tenants' rows
        connect_args={"timeout": lock_seconds},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA journal_size_limit={KEPT_JOURNAL_BYTES}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        options = connection.get_execution_options()
        mode = options.get(BEGIN, "DEFERRED")
        if mode != "DEFERRED":
            _bound_journal(connection)
            connection.exec_driver_sql(f"PRAGMA busy_timeout={options.get(WAIT_MS, round(lock_seconds * 1000))}")
        connection.exec_driver_sql(f"BEGIN {mode}")

    return engine


def refusal(error: DBAPIError) -> Unavailable | None:
    """Return what a caller is told of a failure that passes, or that an operator must mend; None if it is a defect."""
    told = str(error.orig)
    # A file that is no database, or a spoilt one, comes as the plain base class.
    if type(error) is DatabaseError or "malformed" in told:
        return Unavailable(f"the database cannot be used: {told}", hint=_RESTORE)
    if isinstance(error, OperationalError):
        full = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        hint = "the operator must make room on its disk; then try again" if full else "try again in a moment"
        return Unavailable(f"the database does not take this now: {told}", hint=hint)
    return None


def require_sound(engine: Engine) -> None:
    """Read the whole database once, as a control plane that starts does; a second for a few hundred megabytes.

    Raises:
        Unavailable: if any of its pages is spoilt.
    """
    with engine.connect() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(3)").scalars().all()
    if found != ["ok"]:
        told = "; ".join(str(each).replace("\n", " ") for each in found)[:300]
        raise Unavailable(f"the database {engine.url.database} is damaged: {told}", hint=_RESTORE)


def journal_bytes(engine: Engine) -> int:
    """Return the size of the journal; 0 if there is none."""
    try:
        return os.stat(f"{engine.url.database}-wal").st_size
    except OSError:
        return 0


def _bound_journal(connection: Any) -> None:
    """Cut the journal back if it is over its limit.

    Raises:
        Unavailable: if a reader still needs it.
    """
    size = journal_bytes(connection.engine)
    if size <= MAX_JOURNAL_BYTES:
        return
    connection.exec_driver_sql("PRAGMA busy_timeout=0")
    if connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar():
        raise Unavailable(
            f"the database's journal has {size >> 20} MiB, since somebody has been reading it all the time",
            hint="end the backup or the tool that has the database open",
        )


def _create_private(path: Path) -> None:
    """Make an empty database file that only its owner reads; SQLite gives its journals the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise Unavailable(f"the database cannot be made: {error}", hint="make its directory writable") from error
