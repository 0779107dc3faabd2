"""Is the history whole? The chain of events is walked from its start, and held against its anchors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.store import chain
from polyray.store.anchors import Anchor
from polyray.store.chain import Head
from polyray.store.engine import Store
from polyray.store.steps import note
from polyray.store.tables import Event

#: Kinds of events about the history itself. A gap's entity is `FIRST-LAST`: the events that are gone.
AUDIT, GAP, RESTORE = "audit", "gap", "restore"
CHAIN = "chain"
ACKNOWLEDGED = "acknowledged-"
#: So many findings are told; one spoilt row makes one.
MAX_FINDINGS = 20
PAGE = 1000
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True)
class Gap:
    """Events that are known to be gone: a restore, or a database that was found older than its anchor, told so."""

    first: int
    last: int
    #: The event that tells of it.
    event_id: int
    at_ms: int
    #: By `polyray restore`; otherwise it was found at a start.
    restored: bool
    reason: str

    def covers(self, event_id: int) -> bool:
        return self.first <= event_id <= self.last


@dataclass(frozen=True)
class Audit:
    events: int
    head: Head
    anchors: int
    #: What is wrong, a sentence each, the first bad row first.
    findings: tuple[str, ...]
    gaps: tuple[Gap, ...]
    #: Gaps that nobody has acknowledged.
    open_gaps: tuple[Gap, ...]

    @property
    def ok(self) -> bool:
        return not self.findings and not self.open_gaps


class Walk:
    """Walks events in the order of their ids and notes what does not fit. Pure."""

    def __init__(self, anchors: Sequence[Anchor]) -> None:
        self._anchors: dict[int, set[Anchor]] = defaultdict(set)
        for anchor in anchors:
            self._anchors[anchor.event_id].add(anchor)
        self._found: list[tuple[int, str]] = []
        self._seen: set[int] = set()
        self._acknowledged: set[int] = set()
        self.head, self.events, self.gaps = chain.EMPTY, 0, list[Gap]()

    def event(self, event: Event) -> None:
        before, self.head = self.head, Head(event.event_id, event.chain)
        self.events += 1
        holds = _holds(before.chain, event)
        if not holds:
            self._found.append((event.event_id, _broken(before.event_id, event.event_id)))
        for anchor in self._anchors.get(event.event_id, ()):
            self._seen.add(event.event_id)
            if anchor.chain != event.chain:
                told = f"event {event.event_id} is not the one that was anchored at {_time(anchor.at_ms)}"
                self._found.append((event.event_id, f"{told}: the history up to it was written anew"))
        if holds:
            self._note_gap(event)

    def result(self) -> Audit:
        missing = [i for i in self._anchors if i not in self._seen and not any(gap.covers(i) for gap in self.gaps)]
        self._found += [(i, _missing(i, self._anchors[i])) for i in missing if i <= self.head.event_id]
        if beyond := [i for i in missing if i > self.head.event_id]:
            self._found.append((beyond[0], older_than_anchor(self.head.event_id, max(beyond))))
        findings = [told for _, told in sorted(self._found)]
        if len(findings) > MAX_FINDINGS:
            findings[MAX_FINDINGS:] = [f"and {len(findings) - MAX_FINDINGS} more"]
        still_open = [gap for gap in self.gaps if not gap.restored and gap.event_id not in self._acknowledged]
        anchors = sum(map(len, self._anchors.values()))
        return Audit(self.events, self.head, anchors, tuple(findings), tuple(self.gaps), tuple(still_open))

    def _note_gap(self, event: Event) -> None:
        if event.kind in {GAP, RESTORE} and (match := _RANGE.fullmatch(event.entity_id)) is not None:
            first, last = int(match[1]), int(match[2])
            gap = Gap(first, last, event.event_id, event.at_ms, event.kind == RESTORE, event.reason)
            # It tells of what came right before it: no event can excuse what was lost elsewhere.
            if last < event.event_id:
                self.gaps.append(gap)
        elif event.kind == AUDIT and event.entity_id.startswith(ACKNOWLEDGED):
            number = event.entity_id.removeprefix(ACKNOWLEDGED)
            self._acknowledged.add(int(number) if number.isdecimal() else 0)


def verify(store: Store, anchors: Sequence[Anchor], *, pause: Callable[[], None] = lambda: None) -> Audit:
    """Walk the whole chain, page by page, and hold it against anchors that were read before.

    `pause` is called between two pages.
    """
    walk = Walk(anchors)
    for page in _pages(store):
        for event in page:
            walk.event(event)
        pause()
    return walk.result()


def agrees(session: Session, anchored: Head) -> bool:
    """Return whether the database still has an event that it had once."""
    event = session.get(Event, anchored.event_id)
    return anchored == chain.EMPTY or (event is not None and event.chain == anchored.chain)


def tell_of_lost_end(session: Session, anchor: Anchor | None, *, now_ms: int) -> str | None:
    """Note, as the next event, that the database is older than its newest anchor, and return what was told.

    The chain goes on above the lost ids, so that no id ever means two events. Idempotent.
    """
    newest = chain.head(session)
    if anchor is None or anchor.event_id <= newest.event_id:
        return None
    told = older_than_anchor(newest.event_id, anchor.event_id)
    chain.skip_to(session, anchor.event_id + 1)
    lost = f"{newest.event_id + 1}-{anchor.event_id}"
    note(session, GAP, lost, tenant=None, now_ms=now_ms, reason=told)
    return told


def tell_of_findings(session: Session, findings: Collection[str], *, now_ms: int) -> None:
    """Note each finding that was not told before."""
    told = select(Event.reason).where(Event.entity_id == CHAIN, Event.kind == AUDIT)
    known = set(session.scalars(told))
    for finding in findings:
        if finding not in known:
            note(session, AUDIT, CHAIN, tenant=None, now_ms=now_ms, reason=finding)


def acknowledge(session: Session, gaps: Collection[Gap], *, by: str, now_ms: int) -> None:
    """Note that somebody knows of gaps: they are told from now on, and alarm nobody."""
    for gap in gaps:
        reason = f"{by} knows that events {gap.first} to {gap.last} are missing"
        note(session, AUDIT, f"{ACKNOWLEDGED}{gap.event_id}", tenant=None, now_ms=now_ms, reason=reason)


def older_than_anchor(last: int, anchored: int) -> str:
    lost = f"events {last + 1} to {anchored} are missing"
    return f"{lost}: the database is older than its anchor; restored from a backup?"


def _pages(store: Store) -> Iterator[Sequence[Any]]:
    """Yield all events as plain rows, which are read many times faster than mapped ones."""
    columns, last = Event.__table__.columns, 0
    while True:
        with store.read() as session:
            query = select(*columns).where(columns.event_id > last).order_by(columns.event_id).limit(PAGE)
            page = session.execute(query).all()
        if not page:
            return
        yield page
        last = page[-1].event_id


def _holds(before: str, event: Event) -> bool:
    try:
        return event.chain == chain.link(before, event)
    except (TypeError, ValueError):  # what no event of ours says: SQLite keeps bytes in a column of text
        return False


def _broken(before: int, event_id: int) -> str:
    if event_id == before + 1:
        return f"event {event_id} was changed"
    return f"events {before + 1} to {event_id - 1} are missing, or event {event_id} was changed"


def _missing(event_id: int, anchors: Collection[Anchor]) -> str:
    return f"event {event_id} is missing: it was anchored at {_time(min(each.at_ms for each in anchors))}"


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
