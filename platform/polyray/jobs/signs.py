"""Cheap signs that the broker's world is another one than it was: what a cycle depends on, in a few short queries."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from polyray.core.lifecycle import NodeState
from polyray.reports.metering import month_bounds, month_of
from polyray.store.tables import Budget, Event, Node, Quota, Tenant

Signs = tuple[object, ...]


def signs(session: Session) -> Signs:
    """Return what differs whenever rows differ that a plan depends on.

    Every step of a workload, a lease or a node, and every new one, is an event; what else counts is small.
    """
    living = select(Node.node_id, Node.idle_since_ms, Node.stop_requested_ms, Node.billed_to_ms)
    return (
        session.scalar(select(func.max(Event.event_id))),
        tuple(
            map(tuple, session.execute(living.where(Node.state != NodeState.TERMINATED.value).order_by(Node.node_id)))
        ),
        _rows(session, Tenant.name, Tenant.suspended),
        _rows(session, Quota.tenant, Quota.flavor, Quota.nominal, Quota.borrowing_limit),
        _rows(session, Budget.tenant, Budget.usd_micros_per_month),
    )


def next_budget_ms(session: Session, now_ms: int) -> int | None:
    """Return when budgets begin anew, in milliseconds since the epoch; None if there are none."""
    if session.scalar(select(Budget.tenant).limit(1)) is None:
        return None
    return month_bounds(month_of(now_ms))[1]


def _rows(session: Session, *columns: InstrumentedAttribute[Any]) -> Signs:
    return tuple(sorted(tuple(row) for row in session.execute(select(*columns))))
