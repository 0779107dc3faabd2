"""Putting a restored database in the place of the one that was there, whole or not at all, and keeping that one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import delete, text

from polyray.core.clock import Clock
from polyray.core.durable import sync_directory
from polyray.core.errors import Conflict, PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.core.settings import Settings
from polyray.recovery import portable
from polyray.recovery.backup import SUFFIX, make_backup
from polyray.store import chain, claims
from polyray.store.engine import Store
from polyray.store.migrate import migrate

#: The journals that SQLite keeps beside its file while it is used.
_JOURNALS = ("-wal", "-shm")


class SQLiteFile:
    """A file in the state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Why what is there could not be read; empty if it could, or there is nothing.
        self.unreadable = ""

    @contextmanager
    def replaced(self) -> Iterator[Store | None]:
        """Yield the database that is there; None if there is none, or it cannot be read."""
        if not self._path.exists() or self._path.stat().st_size == 0:
            yield None
            return
        store = Store(f"sqlite:///{self._path}")
        try:
            try:
                store.require_sound()
                with store.read() as session:
                    portable.require_newest(session)
            except PolyrayError as error:
                self.unreadable = str(error)
            yield None if self.unreadable else store
        finally:
            store.close()

    def put(self, staged: Path, keep_as: str) -> str:
        """Put a portable database in place and return where the replaced one is kept; empty if there was none.

        One rename is the moment at which the new database is in place; until then the old one is, whole.
        """
        kept = self._path.with_name(f"{self._path.name}.{keep_as}")
        was_there = self._path.exists()
        if was_there:
            self._keep(kept)
        with outside("restore.swap"):
            staged.replace(self._path)
        sync_directory(self._path.parent)
        return str(kept) if was_there else ""

    def _keep(self, kept: Path) -> None:
        """Give the old database its second name. Its journal must not be taken for the new one's.

        There are two cases: a sound one takes its journal in; of a spoilt one the journal is kept, too.
        """
        with outside("restore.settle"):
            try:
                portable.settle_file(self._path)
            except sqlite3.Error:
                for suffix in _JOURNALS:
                    if (journal := self._path.with_name(self._path.name + suffix)).exists():
                        _link(journal, kept.with_name(kept.name + suffix))
        with outside("restore.keep"):
            _link(self._path, kept)
        sync_directory(self._path.parent)
        with outside("restore.forget_journal"):
            for suffix in _JOURNALS:
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


class PostgreSQLDatabase:
    """A database on a server: replaced in one transaction."""

    def __init__(self, settings: Settings, clock: Clock, *, overwrite: bool, dry_run: bool) -> None:
        self._settings = settings
        self._clock = clock
        self._overwrite = overwrite
        self._dry_run = dry_run
        self._empty = True
        self._head = chain.EMPTY
        self.unreadable = ""

    @contextmanager
    def replaced(self) -> Iterator[Store | None]:
        """Yield the database if there is anything in it.

        Raises:
            Conflict: if there is, and it is not to be replaced, or somebody works with it.
        """
        store = Store(self._settings.store_url)
        try:
            if not self._dry_run:
                migrate(store)
            self._look(store)
            yield None if self._empty else store
        finally:
            store.close()

    def _look(self, store: Store) -> None:
        with store.read() as session:
            if not portable.has_schema(session):
                return
            portable.require_newest(session)
            counts = portable.row_counts(session)
            self._head, leader = chain.head(session), claims.held(session, "leader")
        self._empty = not any(counts.values())
        if self._dry_run:
            return
        if not self._empty and not self._overwrite:
            rows = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            hint = "replace it with --yes (it is backed up first), or name an empty database"
            raise Conflict(f"the database is not empty: {rows}", field="database_url", hint=hint)
        if leader is not None and leader.expires_ms > self._clock.now_ms():
            hint = "stop it with 'polyray down' where it runs; one that was killed is forgotten after 15 s"
            raise Conflict(f"a control plane works with the database: {leader.owner}", hint=hint)

    def put(self, staged: Path, keep_as: str) -> str:
        kept = self._settings.state_dir / f"{keep_as}{SUFFIX}"
        store, source = Store(self._settings.store_url), Store(f"sqlite:///{staged}")
        try:
            if not self._empty:
                make_backup(store, self._settings, kept, clock=self._clock)
            with outside("restore.swap"), source.read() as rows, store.write() as session:
                portable.long_read(session)
                if chain.head(session) != self._head:
                    raise Conflict("somebody wrote to the database meanwhile", hint="stop what does, and try again")
                for table in reversed(portable.tables()):
                    session.execute(delete(table))
                portable.copy_rows(rows, session.connection())
                chain.skip_to(session, _next_event_id(staged))
        finally:
            source.close()
            store.close()
        return "" if self._empty else str(kept)


def place_of(settings: Settings, clock: Clock, *, overwrite: bool, dry_run: bool) -> SQLiteFile | PostgreSQLDatabase:
    """Return where the database of these settings is."""
    if settings.store_url.startswith("sqlite"):
        return SQLiteFile(Path(settings.store_url.removeprefix("sqlite:///")))
    return PostgreSQLDatabase(settings, clock, overwrite=overwrite, dry_run=dry_run)


def put_definition(state_dir: Path, staged: Path, keep_as: str) -> None:
    """Put the definition of the backup in place of the one in force; a backup without one leaves none in force."""
    path = state_dir / "platform.json"
    if path.exists():
        _link(path, path.with_name(f"{path.name}.{keep_as}"))
    with outside("restore.definition"):
        if staged.exists():
            staged.replace(path)
        else:
            path.unlink(missing_ok=True)
    sync_directory(state_dir)


def forget_routes(run_dir: Path) -> None:
    """Let the gateway begin without a key, a route or a backend: what it was told last is not so any more."""
    with outside("restore.forget_routes"):
        shutil.rmtree(run_dir / "haproxy", ignore_errors=True)


def writing(work: Callable[[], str]) -> str:
    """Do what writes files, and tell of a full disk as such."""
    try:
        return work()
    except OSError as error:
        raise Unavailable(
            f"the state directory cannot be written: {error}", hint="make room, and restore again"
        ) from error


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, which no other has: a replaced database is never overwritten."""
    os.link(path, name)


def _next_event_id(staged: Path) -> int:
    """Return the number that SQLite would give the next event: above all that were ever given."""
    store = Store(f"sqlite:///{staged}")
    try:
        with store.read() as session:
            last = session.execute(text("SELECT seq FROM sqlite_sequence WHERE name = 'events'")).scalar()
    finally:
        store.close()
    return int(last or 0) + 1
