"""Pages of versioned artefacts: datasets and models are listed alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from polyray.api.paging import Cursor, parse_cursor
from polyray.store.tables import DatasetVersion, ModelVersion

Version = TypeVar("Version", DatasetVersion, ModelVersion)


def versions_page(
    session: Session, table: type[Version], *, tenant: str, name: str | None, cursor: str | None, limit: int
) -> tuple[Sequence[Version], str | None]:
    """Return a page of a tenant's versions, by name, the newest version first, and the cursor of the next one."""
    after = parse_cursor(cursor)
    query = select(table).where(table.tenant == tenant)
    if name is not None:
        query = query.where(table.name == name)
    if after is not None:
        query = query.where(tuple_(table.name, -table.version) > (after.id, -after.order))
    rows = session.scalars(query.order_by(table.name, table.version.desc()).limit(limit + 1)).all()
    more = Cursor(rows[limit - 1].version, rows[limit - 1].name).encode() if len(rows) > limit else None
    return rows[:limit], more
