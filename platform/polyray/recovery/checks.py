"""Looks at an unpacked backup: is it whole, what it says it is, and of the history that was anchored here?"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    and_,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from polyray.core.errors import Invalid, Unavailable
from polyray.recovery import portable
from polyray.recovery.manifest import Manifest, check_rows
from polyray.recovery.room import lacks_room
from polyray.store import chain
from polyray.store.anchors import Anchor
from polyray.store.chain import Head
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Event


def check_database(database: Path, manifest: Manifest) -> None:
    """Check that the unpacked database is one, is what its manifest says, and can be brought to this schema.

    Raises:
        Invalid
        Unavailable: if there is no room to bring it forward.
    """
    broken = Invalid("its database is damaged, or none", field="backup", hint="take another one")
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            if connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                raise broken
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise broken from error
    store = Store(f"sqlite:///{database}")
    try:
        with store.read() as session:
            if portable.revision_of(session) != manifest.schema_revision:
                raise Invalid("its schema is not the one it says", field="backup", hint="take another one")
        migrate(store)
        with store.read() as session:
            check_rows(manifest, portable.row_counts(session))
            _check_values(session)
            head = chain.head(session)
        if head != Head(manifest.last_event_id, manifest.last_chain) and manifest.last_event_id:
            raise Invalid("its history is not the one it says", field="backup", hint="take another one")
    except Unavailable as error:
        if lacks_room(error):
            raise
        raise broken from error  # it lacks a table, or a column
    finally:
        store.close()


def _check_values(session: Session) -> None:
    """Check that each column holds what is kept in it, since SQLite takes whatever it is given.

    Raises:
        Invalid: naming the first table that has a row of another kind.
    """
    for table in portable.tables():
        fits = and_(*(_fits(column) for column in table.columns))
        if session.scalar(select(literal(1)).select_from(table).where(~fits).limit(1)) is not None:
            raise Invalid(f"a row of {table.name} holds what is no such row's", field="backup", hint="take another one")


def _fits(column: Column[Any]) -> ColumnElement[bool]:
    match column.type:
        case JSON():
            kind, more = "text", func.json_valid(column) == 1
        case Integer() | Boolean():
            kind, more = "integer", true()
        case LargeBinary():
            kind, more = "blob", true()
        case _:
            kind, more = "text", true()
    kept = and_(func.typeof(column) == kind, more)
    return or_(kept, column.is_(None)) if column.nullable else kept


def contradiction(database: Path, anchors: Sequence[Anchor]) -> str:
    """Return how a backup's history differs from what was anchored; empty where it does not.

    Anchors of what came after the backup say nothing of it.
    """
    store = Store(f"sqlite:///{database}")
    try:
        with store.read() as session:
            for anchor in anchors:
                event = session.get(Event, anchor.event_id)
                if event is not None and event.chain != anchor.chain:
                    return f"its event {anchor.event_id} is not the one that was anchored here"
    finally:
        store.close()
    return ""
