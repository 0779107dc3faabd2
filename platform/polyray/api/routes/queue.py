"""The queue and the nodes: what all share, shown without telling tenants of each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import not_, select
from sqlalchemy.orm import Session

from polyray.api.deps import Caller, Given, guarded_router, may
from polyray.api.paging import DEFAULT_LIMIT, Cursor, CursorText, Limit, parse_cursor
from polyray.api.queueing import ORDER, WAITING, ahead_of, count_waiting, rank_of
from polyray.api.views import NodeView, Page, QueueEntry
from polyray.core.lifecycle import LeaseState, NodeState
from polyray.core.resources import Resources, total
from polyray.core.spec import WorkloadSpec
from polyray.identity.policy import Action
from polyray.identity.tokens import Principal
from polyray.store.tables import Lease, Node, Workload

router = guarded_router("/v1", "capacity")

#: A cursor's number holds the priority's rank above the time of queueing.
_RANK_STEP = 2**45


@router.get("/queue", **may(Action.READ_QUEUE))
def queue(services: Given, caller: Caller, cursor: CursorText = None, limit: Limit = DEFAULT_LIMIT) -> Page[QueueEntry]:
    """List what waits, in order. Of other tenants' workloads only the place is shown; operators see all."""
    after = parse_cursor(cursor)
    query = select(Workload).where(WAITING).order_by(*ORDER).limit(limit + 1)
    now_ms = services.clock.now_ms()
    with services.store.read() as session:
        first = 1
        if after is not None:
            rank, queued_ms = divmod(after.order, _RANK_STEP)
            until = ahead_of(rank, queued_ms, after.id) | (Workload.workload_id == after.id)
            query = query.where(not_(until))
            first += count_waiting(session, until)
        rows = session.scalars(query).all()
        items = []
        for position, row in enumerate(rows[:limit], first):
            mine = caller.tenant in {None, row.tenant}
            items.append(_entry(row, position, now_ms) if mine else _hidden(position))
    more = None
    if len(rows) > limit:
        last = rows[limit - 1]
        more = Cursor(rank_of(last) * _RANK_STEP + last.queued_ms, last.workload_id).encode()
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
