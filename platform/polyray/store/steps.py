"""The only place where a state changes.

`step` checks the transition table, writes the state and appends the event to the chain, all in the caller's
write transaction: an event exists if and only if the step was made. Nothing else writes events.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.lifecycle import (
    CLUSTER,
    LEASE,
    NODE,
    WORKLOAD,
    ClusterState,
    LeaseState,
    NodeState,
    State,
    TransitionTable,
    WorkloadState,
)
from polyray.store import chain
from polyray.store.tables import Cluster, Event, Lease, Node, Workload

Row = Workload | Cluster | Lease | Node


def step(session: Session, row: Row, finish: State, *, now_ms: int, reason: str = "") -> None:
    """Move `row` to `finish`; `reason` is told beside the table's own reason.

    Raises:
        ForbiddenStep: if the table does not have the step.
    """
    table, entity_id = described(row)
    start = type(table.initial)(row.state)
    story = [] if (start, finish) in table.steps else _story(session, entity_id)
    why = table.check(entity_id, start, finish, story)
    row.state = finish.value
    told = reason or why
    if not isinstance(row, Lease):
        row.state_reason = told
    chain.append(session, _event(row, entity_id, start.value, finish.value, told, now_ms))


def created(session: Session, row: Row, *, now_ms: int, reason: str) -> None:
    """Add `row` in its table's initial state, with its first event."""
    table, entity_id = described(row)
    row.state = table.initial.value
    session.add(row)
    chain.append(session, _event(row, entity_id, "", table.initial.value, reason, now_ms))


def note(session: Session, kind: str, entity_id: str, *, tenant: str | None, now_ms: int, reason: str) -> None:
    """Tell something that is no step, such as a refusal or a restarted slice."""
    event = Event(at_ms=now_ms, kind=kind, entity_id=entity_id, tenant=tenant, start="", finish="", reason=reason)
    chain.append(session, event)


def described(row: Row) -> tuple[TransitionTable, str]:
    match row:
        case Workload():
            return WORKLOAD, row.workload_id
        case Cluster():
            return CLUSTER, row.cluster_id
        case Lease():
            return LEASE, row.lease_id
        case Node():
            return NODE, row.node_id


def _event(row: Row, entity_id: str, start: str, finish: str, reason: str, now_ms: int) -> Event:
    tenant = None if isinstance(row, Node) else row.tenant
    kind = described(row)[0].kind
    return Event(at_ms=now_ms, kind=kind, entity_id=entity_id, tenant=tenant, start=start, finish=finish, reason=reason)


def _story(session: Session, entity_id: str) -> list[str]:
    events = session.scalars(select(Event).where(Event.entity_id == entity_id).order_by(Event.event_id))
    return [f"{event.at_ms} {event.start or '-'} -> {event.finish or '-'}: {event.reason}" for event in events]


def workload_state(row: Workload) -> WorkloadState:
    return WorkloadState(row.state)


def cluster_state(row: Cluster) -> ClusterState:
    return ClusterState(row.state)


def lease_state(row: Lease) -> LeaseState:
    return LeaseState(row.state)


def node_state(row: Node) -> NodeState:
    return NodeState(row.state)
