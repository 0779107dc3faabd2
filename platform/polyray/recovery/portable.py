"""Copying all rows from one database into another, whichever of ours they are, with bounded memory."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Connection, MetaData, Table, func, insert, inspect, select, text
from sqlalchemy.orm import Session

from polyray.core.errors import Conflict, Invalid
from polyray.core.faultpoints import reach
from polyray.store.engine import Store
from polyray.store.migrate import MIGRATIONS, migrate
from polyray.store.tables import Base

#: Rows that are in memory at once.
PAGE = 1000
SCHEMA = "alembic_version"


def tables() -> tuple[Table, ...]:
    """Return all tables, each after those that it refers to."""
    return tuple(Base.metadata.sorted_tables)


def known_revisions() -> tuple[str, ...]:
    """Return the revisions of the schema that this version can start from, the newest first."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return tuple(script.revision for script in ScriptDirectory.from_config(config).walk_revisions())


def has_schema(session: Session) -> bool:
    return inspect(session.connection()).has_table(SCHEMA)


def revision_of(session: Session) -> str:
    """Return the revision of a database's schema.

    Raises:
        Invalid: if it is no database of the platform's.
    """
    if not has_schema(session):
        raise Invalid("the database has no schema yet", field="database_url", hint="start the platform once")
    found = session.execute(text(f"SELECT version_num FROM {SCHEMA}")).scalars().all()
    if len(found) != 1:
        raise Invalid("the database does not say which schema it has", field="database_url", hint="restore a backup")
    return str(found[0])


def require_newest(session: Session) -> str:
    """Return the revision of a database that has this version's schema.

    Raises:
        Conflict: if it has another.
    """
    revision, newest = revision_of(session), known_revisions()[0]
    if revision != newest:
        hint = "do it with the version of Polyray that ran last, or start the platform once"
        raise Conflict(f"the database's schema is {revision}, and this version's is {newest}", hint=hint)
    return revision


def long_read(session: Session) -> None:
    """Let a view last, and a statement take, as long as a copy does: while it is made, no bound of a request holds."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SET LOCAL statement_timeout = 0"))
        session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '600s'"))


def copy_rows(source: Session, target: Connection) -> dict[str, int]:
    """Copy all rows, as one view of `source` has them, into empty tables; return how many there are of each."""
    copies = MetaData()
    counts = {}
    for table in tables():
        into = table.to_metadata(copies)
        for column in into.columns:
            if isinstance(column.type, JSON):  # what is absent stays absent: it is not JSON's null
                column.type = JSON(none_as_null=True)
        counts[table.name] = 0
        rows = source.execute(select(table).order_by(*table.primary_key), execution_options={"yield_per": PAGE})
        for page in rows.mappings().partitions():
            target.execute(insert(into), [dict(row) for row in page])
            counts[table.name] += len(page)
            reach("portable.page.after")
    return counts


def make_portable(source: Session, path: Path) -> dict[str, int]:
    """Make a SQLite file of all rows, without a journal beside it; return how many there are of each table."""
    copy = Store(f"sqlite:///{path}")
    try:
        migrate(copy)
        with copy.write() as session:
            counts = copy_rows(source, session.connection())
    finally:
        copy.close()
    settle_file(path)
    return counts


def settle_file(path: Path) -> None:
    """Bring all that a SQLite database has into its one file: no journal is left beside it."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()


def row_counts(session: Session) -> dict[str, int]:
    return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables()}
