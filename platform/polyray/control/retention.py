"""What is kept for how long: the reconciler that forgets.

There are two kinds. What only matters for a while (answers kept under idempotency keys, logins, codes, rested ports)
goes once its time is over. What a workload left behind (its run directory: log, records, checkpoints) goes the days
after its end that the platform file says. Its rows, its events and what it cost are kept: bills stay explainable.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from sqlalchemy import ColumnElement, delete, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from polyray.api.idempotency import KEEP_MS
from polyray.core.beneath import remove_beneath
from polyray.core.clock import Clock
from polyray.core.errors import Conflict
from polyray.core.layout import Layout
from polyray.core.lifecycle import WORKLOAD
from polyray.core.reconcile import Done
from polyray.store.engine import Store
from polyray.store.tables import Base, DeviceCode, IdempotencyKey, LoginSession, PortBlock, RefreshToken, Workload

log = structlog.get_logger(__name__)

DAY_MS = 86_400_000
#: Deleted in one transaction: other writers wait no longer than that takes.
BATCH = 500
#: Run directories removed in one go.
MAX_RUNS = 100
_FIRST = (0, "")
#: An expired login may be asked about so much longer: a token that has just ended says so.
GRACE_MS = DAY_MS

Columns = tuple[InstrumentedAttribute[str], ...] | tuple[InstrumentedAttribute[str], InstrumentedAttribute[int]]


class Retention:
    """The reconciler of kind `retention`; it has one key. `history_days()` is the setting in force.

    Logins and codes end by `wall`, the clock that they are judged by, and are kept until they are over by both: a
    clock that was moved may be moved back, and the gateway refuses an ended login only while its row is there.
    """

    kind = "retention"

    def __init__(
        self, *, store: Store, layout: Layout, clock: Clock, wall: Clock, history_days: Callable[[], int]
    ) -> None:
        self._store, self._layout, self._clock, self._wall = store, layout, clock, wall
        self._history_days = history_days
        #: The last run that was looked at: those that cannot be removed hold up no others.
        self._after = _FIRST

    def pending(self) -> list[str]:
        return ["sweep"]

    def reconcile(self, key: str) -> Done:
        now_ms = self._clock.now_ms()
        for table, columns, over in _over(now_ms, min(now_ms, self._wall.now_ms())):
            while self._delete_batch(table, columns, over) == BATCH:
                pass
        more = self._remove_runs(now_ms - self._history_days() * DAY_MS)
        return Done(again_seconds=1.0 if more else None)

    def _delete_batch(self, table: type[Base], columns: Columns, over: ColumnElement[bool]) -> int:
        with self._store.read() as session:  # most of the time there is nothing: no reason to write
            found = session.execute(select(*columns).where(over).limit(BATCH)).all()
        if found:
            with self._store.write() as session:
                session.execute(delete(table).where(over, tuple_(*columns).in_([tuple(row) for row in found])))
            log.info("forgotten", table=table.__tablename__, rows=len(found))
        return len(found)

    def _remove_runs(self, ended_before_ms: int) -> bool:
        """Remove the run directories of what ended before; return whether there may be more."""
        ended = [state.value for state in WORKLOAD.terminal]
        over = Workload.state.in_(ended) & (Workload.ended_ms < ended_before_ms) & Workload.history_removed_ms.is_(None)
        place = tuple_(Workload.ended_ms, Workload.workload_id)
        query = select(Workload).where(over, place > self._after).order_by(Workload.ended_ms, Workload.workload_id)
        with self._store.read() as session:
            rows = session.scalars(query.limit(MAX_RUNS)).all()
        more = len(rows) == MAX_RUNS
        self._after = (rows[-1].ended_ms or 0, rows[-1].workload_id) if more else _FIRST
        removed = [row.workload_id for row in rows if self._remove(row)]
        if removed:
            with self._store.write() as session:
                _mark(session, removed, self._clock.now_ms())
        return more

    def _remove(self, row: Workload) -> bool:
        """Remove one run directory; one that cannot be removed keeps no other from it."""
        run = self._layout.run(row.tenant, row.workload_id).relative_to(self._layout.root)
        try:
            remove_beneath(self._layout.root, run.as_posix())
        except (OSError, Conflict) as error:
            log.warning("run_not_removed", workload=row.workload_id, error=str(error))
            return False
        log.info("run_removed", workload=row.workload_id, tenant=row.tenant)
        return True


def _mark(session: Session, workload_ids: list[str], now_ms: int) -> None:
    for row in session.scalars(select(Workload).where(Workload.workload_id.in_(workload_ids))):
        row.history_removed_ms = now_ms


def _over(now_ms: int, judged_ms: int) -> tuple[tuple[type[Base], Columns, ColumnElement[bool]], ...]:
    """Return (table, its key, which rows are over)."""
    return (
        (
            IdempotencyKey,
            (IdempotencyKey.principal, IdempotencyKey.key),
            IdempotencyKey.created_ms < now_ms - KEEP_MS,
        ),
        (DeviceCode, (DeviceCode.code_hash,), DeviceCode.expires_ms < judged_ms - GRACE_MS),
        (RefreshToken, (RefreshToken.token_hash,), RefreshToken.expires_ms < judged_ms),
        (LoginSession, (LoginSession.sid,), LoginSession.expires_ms < judged_ms - GRACE_MS),
        (PortBlock, (PortBlock.host, PortBlock.index), PortBlock.usable_again_ms < now_ms),
    )
