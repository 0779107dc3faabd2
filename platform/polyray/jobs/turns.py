"""The queue in the order in which the broker looks at it, for those who ask for their place."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from polyray.broker.snapshot import TenantView
from polyray.broker.turns import in_turn
from polyray.jobs.snapshots import tenant_views
from polyray.jobs.waiting import WaitingRows
from polyray.store.tables import Event


@dataclass(frozen=True)
class Order:
    """Workload ids in turn, and the place of each; 1 is next."""

    ids: Sequence[str]
    places: Mapping[str, int]


class Turns:
    """Puts the queue in order when asked, and keeps that until anything happens. Thread-safe."""

    def __init__(self, waiting: WaitingRows | None = None) -> None:
        self._waiting = waiting or WaitingRows()
        self._mutex = threading.Lock()
        self._kept: tuple[object, Order] | None = None

    def order(self, session: Session, now_ms: int) -> Order:
        """Return the order as of the session's view: of all that has happened, and of today's quotas."""
        tenants = tenant_views(session, {})
        state = session.scalar(select(func.max(Event.event_id))), tenants
        with self._mutex:
            if self._kept is None or self._kept[0] != state:
                self._kept = state, self._new(session, now_ms, tenants)
            return self._kept[1]

    def _new(self, session: Session, now_ms: int, tenants: Sequence[TenantView]) -> Order:
        ids = [waiting.workload_id for waiting in in_turn(self._waiting.read(session, now_ms), tenants)]
        return Order(ids, {workload_id: place for place, workload_id in enumerate(ids, start=1)})
