"""The chain of events: each row's hash covers what it says and the hash before it.

So a row that was changed or removed is found by whoever reads the rest; what was cut off at the end is found
by the anchors that are kept outside the database (`polyray.store.anchors`). Event ids rise by commit and may
have gaps, so the hash does not cover them.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from polyray.store.tables import Event

#: What the first event follows.
START = "0" * 64
_HEAD = "polyray.chain"


class Head(NamedTuple):
    """The newest event; (0, START) where there is none."""

    event_id: int
    chain: str


EMPTY = Head(0, START)


def link(before: str, event: Event) -> str:
    """Return the hash of an event that follows one whose hash is `before`."""
    said = [before, event.at_ms, event.kind, event.entity_id, event.tenant, event.start, event.finish, event.reason]
    return hashlib.sha256(json.dumps(said, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()


def head(session: Session) -> Head:
    """Return the newest event as the database has it."""
    newest = select(Event.event_id, Event.chain).order_by(Event.event_id.desc()).limit(1)
    with session.no_autoflush:
        row = session.execute(newest).first()
    return EMPTY if row is None else Head(*row)


def append(session: Session, event: Event) -> None:
    """Add an event to the caller's write transaction, after all that are there or were added in it.

    The database is asked for its head once in a transaction: there is one writer at a time.
    """
    transaction = session.get_nested_transaction() or session.get_transaction()
    known = session.info.get(_HEAD)
    # What a rolled back transaction (or savepoint) added is no event: what was known then counts no more.
    before = known[1] if known is not None and known[0] is transaction and transaction is not None else None
    for name in ("kind", "entity_id", "tenant", "start", "finish", "reason"):
        setattr(event, name, _kept(getattr(event, name)))
    event.chain = link(head(session).chain if before is None else before, event)
    session.add(event)
    session.info[_HEAD] = (session.get_nested_transaction() or session.get_transaction(), event.chain)


def _kept(said: str | None) -> str | None:
    """Return text as every database keeps it: PostgreSQL's knows no NUL, and no encoding knows half a character."""
    if said is None:
        return None
    return said.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def skip_to(session: Session, event_id: int) -> None:
    """Let the next event have this id, which is above all that there are: ids of lost events are never used again."""
    session.flush()
    if session.get_bind().dialect.name == "postgresql":
        put = text("SELECT setval(pg_get_serial_sequence('events', 'event_id'), :next, false)")
        session.execute(put, {"next": event_id})
        return
    session.execute(text("DELETE FROM sqlite_sequence WHERE name = 'events'"))
    session.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', :last)"), {"last": event_id - 1})
