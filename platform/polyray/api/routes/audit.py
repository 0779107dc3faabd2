"""The history of the whole platform, and whether it is whole. For operators."""

from __future__ import annotations

from sqlalchemy import select

from polyray.api.deps import Caller, Given, Services, guarded_router, may
from polyray.api.paging import MAX_LIMIT, Cursor, CursorText, Limit, parse_cursor
from polyray.api.views import AuditEventView, AuditView, GapView, Page
from polyray.identity.policy import Action
from polyray.identity.tokens import Principal
from polyray.store.audit import AUDIT, Audit
from polyray.store.steps import note
from polyray.store.tables import Event

router = guarded_router("/v1/audit", "audit")


@router.get("", **may(Action.READ_AUDIT))
def events(
    services: Given, caller: Caller, cursor: CursorText = None, limit: Limit = MAX_LIMIT
) -> Page[AuditEventView]:
    """List all events, the newest first. That it was read is an event, too."""
    before = parse_cursor(cursor)
    query = select(Event).order_by(Event.event_id.desc()).limit(limit + 1)
    if before is None:
        _note(services, caller, "read the history")
    else:
        query = query.where(Event.event_id < before.order)
    with services.store.read() as session:
        rows = session.scalars(query).all()
    shown = rows[:limit]
    more = Cursor(shown[-1].event_id, "event").encode() if len(rows) > limit else None
    return Page[AuditEventView](items=[_event(event) for event in shown], next_cursor=more)


@router.get("/verify", **may(Action.READ_AUDIT))
def verify(services: Given, caller: Caller) -> AuditView:
    """Walk the chain of all events, hold it against its anchors, and name the first bad row."""
    _note(services, caller, "had the history verified")
    return _view(services.audit.verify())


@router.post("/acknowledge", **may(Action.ACKNOWLEDGE_AUDIT))
def acknowledge(services: Given, caller: Caller) -> AuditView:
    """Take note of the gaps there are: they stay in the history, and make the status alarming no more."""
    return _view(services.audit.acknowledge(caller.subject))


def _note(services: Services, caller: Principal, what: str) -> None:
    now_ms = services.clock.now_ms()
    with services.store.write() as session:
        note(session, AUDIT, caller.sid, tenant=None, now_ms=now_ms, reason=f"{caller.subject} {what}")


def _view(found: Audit) -> AuditView:
    open_gaps = {gap.event_id for gap in found.open_gaps}
    return AuditView(
        ok=found.ok,
        events=found.events,
        anchors=found.anchors,
        head_event_id=found.head.event_id,
        head_chain=found.head.chain,
        findings=list(found.findings),
        gaps=[
            GapView(
                first=gap.first,
                last=gap.last,
                event_id=gap.event_id,
                at_ms=gap.at_ms,
                restored=gap.restored,
                acknowledged=gap.event_id not in open_gaps,
                reason=gap.reason,
            )
            for gap in found.gaps
        ],
    )


def _event(row: Event) -> AuditEventView:
    return AuditEventView(
        event_id=row.event_id,
        at_ms=row.at_ms,
        kind=row.kind,
        entity_id=row.entity_id,
        tenant=row.tenant,
        start=row.start,
        finish=row.finish,
        reason=row.reason,
        chain=row.chain,
    )
