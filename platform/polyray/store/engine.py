"""The store: SQLite on one machine, PostgreSQL on several.

Reads and writes are short transactions around plain SQLAlchemy sessions. A write takes the database's
one write lock at its start (`BEGIN IMMEDIATE` on SQLite, an advisory transaction lock on PostgreSQL), so
what it reads is what it decides on: there is one applier, by construction.

No network call belongs inside a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.orm import Session, sessionmaker

from polyray.core.errors import Unavailable

#: SQLite waits this long for its write lock before it says `busy`.
BUSY_SECONDS = 10
KEPT_CONNECTIONS = 8
MAX_CONNECTIONS = 32
#: The key of PostgreSQL's advisory lock that serialises writers.
_WRITE_LOCK = 0x706F6C79


class Store:
    """Sessions on one database. Rows stay readable after their transaction (they are not expired)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A consistent view. Nothing is committed.

        Raises:
            Unavailable: if the database does not answer.
        """
        with _mapped(), self._sessions() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """The one writer. Commits at the end, rolls back on any error.

        Raises:
            Unavailable: if the write lock is not had in time, or the database is full or read-only.
        """
        with _mapped(), self._sessions() as session, session.begin():
            if self.engine.dialect.name == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITE_LOCK})
            else:
                session.connection(execution_options={"polyray_begin": "IMMEDIATE"})
            yield session

    def close(self) -> None:
        self.engine.dispose()


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise Unavailable(f"the database does not take this now: {error.orig}", hint="try again in a moment") from error
    except PoolExhausted as error:
        raise Unavailable("all connections to the database are in use", hint="try again in a moment") from error
    except DatabaseError as error:
        # A file that is no database, or a spoilt one, comes as the plain base class.
        if type(error) is not DatabaseError:
            raise
        raise Unavailable(f"the database cannot be used: {error.orig}", hint="restore it, or name another") from error


def _create_private(path: Path) -> None:
    """Make an empty database file that only its owner reads; SQLite gives its journals the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise Unavailable(f"the database cannot be made: {error}", hint="make its directory writable") from error


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    path = make_url(url).database
    if path and path != ":memory:":
        _create_private(Path(path))
    # Opening a connection costs more than most reads; a session has one to itself while it lasts.
    engine = create_engine(
        url,
        pool_size=KEPT_CONNECTIONS,
        max_overflow=MAX_CONNECTIONS - KEPT_CONNECTIONS,
        pool_timeout=BUSY_SECONDS,
        connect_args={"timeout": BUSY_SECONDS},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        mode = connection.get_execution_options().get("polyray_begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {mode}")

    return engine
