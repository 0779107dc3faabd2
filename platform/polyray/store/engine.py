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
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.orm import Session, sessionmaker

from polyray.core.errors import Invalid, Unavailable
from polyray.core.faultpoints import reach
from polyray.store import postgresql, sqlite
from polyray.store.fair import FairLock

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
        self._writing = FairLock()

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
        with _mapped(), self._turn() as wait_ms, self._sessions() as session, session.begin():
            if self.on_postgresql:
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": postgresql.WRITE_LOCK})
            else:
                session.connection(execution_options={sqlite.BEGIN: "IMMEDIATE", sqlite.WAIT_MS: wait_ms})
            yield session
            session.flush()
            reach("store.commit.before")
        reach("store.commit.after")

    def require_sound(self) -> None:
        """Look for damage that the database can find by itself.

        Raises:
            Unavailable: naming what is damaged, and the way out.
        """
        if not self.on_postgresql:  # which checks pages as it reads them
            with _mapped():
                sqlite.require_sound(self.engine)

    def told(self) -> str:
        """Say in a word what the database is, and how long the journal of SQLite's is."""
        size = 0 if self.on_postgresql else sqlite.journal_bytes(self.engine)
        return self.engine.dialect.name + (f", journal of {size >> 20} MiB" if size >= 2**20 else "")

    @contextmanager
    def _turn(self) -> Iterator[int]:
        """Wait for this process's writers before; yield the milliseconds that are left to wait for others'.

        One that waits here needs no connection yet, so that readers find one however many writers wait.
        """
        began = time.monotonic()
        if not self._writing.acquire(timeout=BUSY_SECONDS):
            raise Unavailable("the database is locked: the writes before do not end", hint="try again in a moment")
        try:
            yield max(round((BUSY_SECONDS - (time.monotonic() - began)) * 1000), 1)
        finally:
            self._writing.release()

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
    return sqlite.refusal(error) if isinstance(error.orig, sqlite3.Error) else postgresql.refusal(error)


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
    bound = postgresql.engine_of if url.get_backend_name() == "postgresql" else sqlite.engine_of
    return bound(url, lock_seconds=BUSY_SECONDS, kept=KEPT_CONNECTIONS, most=MAX_CONNECTIONS)
