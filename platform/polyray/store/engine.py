"""The store: SQLite on one machine, PostgreSQL on several.

Reads and writes are short transactions around plain SQLAlchemy sessions. A write takes the database's
one write lock at its start (`BEGIN IMMEDIATE` on SQLite, an advisory transaction lock on PostgreSQL), so
what it reads is what it decides on: there is one applier, by construction.

Nothing is retried in here: a transaction that was lost is `Unavailable`, and whoever asked for it does all
of it again (a client with its idempotency key, a reconciler by looking again). A failure at the very end may
come after the commit.

No network call belongs inside a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.orm import Session, sessionmaker

from polyray.core.errors import Invalid, Unavailable
from polyray.core.faultpoints import reach
from polyray.store import postgresql

#: What PostgreSQL needs to be told for what SQLite gives every reader.
_SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
#: A lock, and a connection of the pool, are waited for so long.
BUSY_SECONDS = 10
KEPT_CONNECTIONS = 8
MAX_CONNECTIONS = 32


class Store:
    """Sessions on one database. Rows stay readable after their transaction (they are not expired).

    Raises:
        Invalid: if the URL is none, or of another database than SQLite and PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @property
    def on_postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One consistent view, as of its first query. Nothing is committed.

        Raises:
            Unavailable: if the database does not answer.
        """
        reach("store.read.before")
        with _mapped(), self._sessions() as session:
            if self.on_postgresql:
                session.connection(execution_options=_SNAPSHOT)
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """The one writer. Commits at the end, rolls back on any error.

        Raises:
            Unavailable: if the write lock is not had in time, the database is full, read-only or gone, or
                the transaction was lost.
        """
        reach("store.write.before")
        with _mapped(), self._sessions() as session, session.begin():
            if self.on_postgresql:
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": postgresql.WRITE_LOCK})
            else:
                session.connection(execution_options={"polyray_begin": "IMMEDIATE"})
            yield session
            session.flush()
            reach("store.commit.before")
        reach("store.commit.after")

    def close(self) -> None:
        self.engine.dispose()


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except PoolExhausted as error:
        raise Unavailable("all connections to the database are in use", hint="try again in a moment") from error
    except DBAPIError as error:
        if (unavailable := _refusal(error)) is None:
            raise
        raise unavailable from error


def _refusal(error: DBAPIError) -> Unavailable | None:
    if not isinstance(error.orig, sqlite3.Error):
        return postgresql.refusal(error)
    if isinstance(error, OperationalError):
        return Unavailable(f"the database does not take this now: {error.orig}", hint="try again in a moment")
    # A file that is no database, or a spoilt one, comes as the plain base class.
    if type(error) is DatabaseError:
        return Unavailable(f"the database cannot be used: {error.orig}", hint="restore it, or name another")
    return None


def _create_private(path: Path) -> None:
    """Make an empty database file that only its owner reads; SQLite gives its journals the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise Unavailable(f"the database cannot be made: {error}", hint="make its directory writable") from error


def _url(given: str) -> URL:
    """Parse a URL. What is told of a bad one does not quote it: it may hold a password."""
    # Other tools write `postgres://`.
    text = given.replace("postgres://", "postgresql://", 1) if given.startswith("postgres://") else given
    hint = "such as postgresql://ROLE@HOST/DATABASE; leave it out for SQLite in the state directory"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise Invalid("it is no URL of a database", field=postgresql.SETTING, hint=hint) from None
    if url.get_backend_name() not in {"sqlite", "postgresql"}:
        known = "the store is SQLite or PostgreSQL"
        raise Invalid(f"{known}, not {url.get_backend_name()}", field=postgresql.SETTING, hint=hint)
    return url


def _engine(given: str) -> Engine:
    url = _url(given)
    if url.get_backend_name() == "postgresql":
        return postgresql.engine_of(url, lock_seconds=BUSY_SECONDS, kept=KEPT_CONNECTIONS, most=MAX_CONNECTIONS)
    path = url.database
    if path and path != ":memory:":
        _create_private(Path(path))
    # Opening a connection costs more than most reads; a session has one to itself while it lasts.
    engine = create_engine(
        url,
        pool_size=KEPT_CONNECTIONS,
        max_overflow=MAX_CONNECTIONS - KEPT_CONNECTIONS,
        pool_timeout=BUSY_SECONDS,
        hide_parameters=True,  # they are tenants' rows
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
