"""Looks at an unpacked backup: is it whole, what it says it is, and of the history that was anchored here?"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from polyray.core.errors import Invalid
from polyray.recovery import portable
from polyray.recovery.manifest import Manifest, check_rows
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
            head = chain.head(session)
        if head != Head(manifest.last_event_id, manifest.last_chain) and manifest.last_event_id:
            raise Invalid("its history is not the one it says", field="backup", hint="take another one")
    finally:
        store.close()


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
