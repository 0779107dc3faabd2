"""The queue and the nodes: what all share, shown without telling tenants of each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select, true
from sqlalchemy.orm import Session

from polyray.api.deps import Caller, Given, guarded_router, may
from polyray.api.paging import DEFAULT_LIMIT, Cursor, CursorText, Limit, parse_cursor
from polyray.api.views import NodeView, Page, QueueEntry
from polyray.core.lifecycle import LeaseState, NodeState
from polyray.core.resources import Resources, total
from polyray.core.spec import WorkloadSpec
from polyray.identity.policy import Action
from polyray.identity.tokens import Principal
from polyray.store.tables import Lease, Node, Workload

router = guarded_router("/v1", "capacity")


@router.get("/queue", **may(Action.READ_QUEUE))
def queue(services: Given, caller: Caller, cursor: CursorText = None, limit: Limit = DEFAULT_LIMIT) -> Page[QueueEntry]:
    """List what waits, in turn. Of other tenants' workloads only the place is shown; operators see all.

    The queue moves while it is read: a page goes on behind the workload that was shown last, or at its place where
    that waits no more.
    """
    after = parse_cursor(cursor)
    now_ms = services.clock.now_ms()
    with services.store.read() as session:
        order = services.turns.order(session, now_ms)
        start = 0 if after is None else order.places.get(after.id, after.order)
        shown = order.ids[start : start + limit]
        own = Workload.workload_id.in_(shown) & (true() if caller.tenant is None else Workload.tenant == caller.tenant)
        rows = {row.workload_id: row for row in session.scalars(select(Workload).where(own))}
    items = [
        _entry(rows[workload_id], place, now_ms) if workload_id in rows else _hidden(place)
        for place, workload_id in enumerate(shown, start + 1)
    ]
    more = Cursor(start + limit, shown[-1]).encode() if start + limit < len(order.ids) else None
    return Page[QueueEntry](items=items, next_cursor=more)


@router.get("/nodes", **may(Action.READ_NODES))
def nodes(services: Given, caller: Caller, ended: bool = False) -> Page[NodeView]:
    """List the machines; with `ended` those too that were given back."""
    query = select(Node).order_by(Node.created_ms, Node.node_id)
    if not ended:
        query = query.where(Node.state != NodeState.TERMINATED.value)
    with services.store.read() as session:
        rows = session.scalars(query).all()
        used: dict[str, list[Resources]] = defaultdict(list)
        live = select(Lease.node_id, Lease.resources).where(Lease.state != LeaseState.RELEASED.value)
        for node_id, resources in session.execute(live):
            used[node_id].append(Resources(resources))
        own = _own_workloads(session, caller, [row.launched_for for row in rows if row.launched_for])
        items = [_node(row, total(used[row.node_id]), own) for row in rows]
    return Page[NodeView](items=items)


def _own_workloads(session: Session, caller: Principal, ids: Sequence[str]) -> set[str]:
    """Return those of `ids` that the caller may know of."""
    if caller.tenant is None:
        return set(ids)
    mine = select(Workload.workload_id).where(Workload.workload_id.in_(ids), Workload.tenant == caller.tenant)
    return set(session.scalars(mine))


def _entry(row: Workload, position: int, now_ms: int) -> QueueEntry:
    spec = WorkloadSpec.model_validate(row.spec)
    return QueueEntry(
        position=position,
        yours=True,
        id=row.workload_id,
        tenant=row.tenant,
        kind=row.kind,
        name=row.name,
        submitted_by=row.submitted_by,
        priority=spec.priority,
        total=total(spec.bundles).as_dict(),
        queued_ms=row.queued_ms,
        # A clock that was set back must not show a wait of minus an hour.
        wait_ms=max(now_ms - row.queued_ms, 0),
        explanation=row.explanation,
    )


def _hidden(position: int) -> QueueEntry:
    return QueueEntry(position=position, yours=False)


def _node(row: Node, used: Resources, own: set[str]) -> NodeView:
    return NodeView(
        node_id=row.node_id,
        pool=row.pool,
        provider=row.provider,
        capacity_type=row.capacity_type,
        usd_micros_per_hour=row.usd_micros_per_hour,
        resources=row.resources,
        used=used.as_dict(),
        simulated=row.simulated,
        state=row.state,
        state_reason=row.state_reason,
        launched_for=row.launched_for if row.launched_for in own else None,
        created_ms=row.created_ms,
        ready_ms=row.ready_ms,
        idle_since_ms=row.idle_since_ms,
    )
