"""Places in the queue, as the broker orders it: priority, then age, then id."""

from __future__ import annotations

from sqlalchemy import ColumnElement, case, func, select, tuple_
from sqlalchemy.orm import Session

from polyray.core.lifecycle import WorkloadState
from polyray.store.tables import Workload

PRIORITIES = {"high": 0, "normal": 1, "low": 2}

RANK: ColumnElement[int] = case(PRIORITIES, value=Workload.spec["priority"].as_string(), else_=1)
WAITING = Workload.state == WorkloadState.QUEUED.value
ORDER = (RANK, Workload.queued_ms, Workload.workload_id)


def rank_of(row: Workload) -> int:
    return PRIORITIES.get(str(row.spec.get("priority")), 1)


def position_of(session: Session, row: Workload) -> int:
    """Return a waiting workload's place in the whole queue; 1 is next."""
    return 1 + count_waiting(session, ahead_of(rank_of(row), row.queued_ms, row.workload_id))


def ahead_of(rank: int, queued_ms: int, workload_id: str) -> ColumnElement[bool]:
    """Return the condition of being before that place."""
    return tuple_(*ORDER) < (rank, queued_ms, workload_id)


def count_waiting(session: Session, condition: ColumnElement[bool]) -> int:
    """Return how many waiting workloads meet a condition."""
    return session.scalar(select(func.count()).select_from(Workload).where(WAITING, condition)) or 0
