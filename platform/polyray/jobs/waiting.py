"""The queue, read from rows; each spec is parsed once, since a workload's spec never changes."""

from __future__ import annotations

import threading
from dataclasses import replace

import structlog
from pydantic import ValidationError
from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from polyray.broker.snapshot import Waiting
from polyray.core.errors import PolyrayError
from polyray.core.lifecycle import WorkloadState
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType, WorkloadSpec
from polyray.jobs.pauses import LONGEST_MS
from polyray.reports.costs import spent_by_workload
from polyray.store.tables import Workload

log = structlog.get_logger(__name__)

#: A higher number goes first.
PRIORITIES = {"low": 0, "normal": 1, "high": 2}
#: Specs that are fetched at once.
_BATCH = 500
#: Requests that are remembered beyond twice those that wait.
SPARE = 100

#: Different specs that are remembered, by their text.
MOST_SPECS = 1000

#: Workload id, when its present wait began, when its rest ends.
_Row = tuple[str, int, int | None]


class WaitingRows:
    """Reads what waits. Thread-safe; like requests share one object, so that a long queue takes little memory."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        #: None for a spec that cannot be read.
        self._parsed: dict[str, Waiting | None] = {}
        self._specs: dict[str, Waiting] = {}
        self._bundles: dict[tuple[Resources, ...], tuple[Resources, ...]] = {}
        self._capacities: dict[tuple[CapacityType, ...], tuple[CapacityType, ...]] = {}

    def read(self, session: Session, now_ms: int) -> tuple[Waiting, ...]:
        """Return every workload that waits and that nobody stopped, the oldest first."""
        found = session.execute(
            select(Workload.workload_id, Workload.queued_ms, Workload.not_before_ms)
            .where(Workload.state == WorkloadState.QUEUED.value, Workload.stop_requested_ms.is_(None))
            .order_by(Workload.created_ms, Workload.workload_id)
        )
        rows: list[_Row] = [(workload_id, queued_ms, until_ms) for workload_id, queued_ms, until_ms in found]
        parsed = self._parse(session, rows)
        queue = []
        for row, waiting in zip(rows, parsed, strict=True):
            if waiting is None:
                continue
            if waiting.queued_ms != row[1] or row[2] is not None:
                waiting = replace(waiting, again_ms=row[1], not_before_ms=_rest_until(row[2], now_ms))
            if waiting.max_cost_usd_micros is not None:
                spent = spent_by_workload(session, waiting.workload_id, now_ms)
                waiting = replace(waiting, spent_usd_micros=spent)
            queue.append(waiting)
        return tuple(queue)

    def _parse(self, session: Session, rows: list[_Row]) -> list[Waiting | None]:
        with self._mutex:
            before = self._parsed
            new = [row[0] for row in rows if row[0] not in before]
            for start in range(0, len(new), _BATCH):
                batch = select(Workload.workload_id, Workload.tenant, Workload.created_ms, cast(Workload.spec, Text))
                for found in session.execute(batch.where(Workload.workload_id.in_(new[start : start + _BATCH]))):
                    before[found[0]] = self._waiting(*found)
            self._parsed = {row[0]: before[row[0]] for row in rows}
            if len(self._bundles) > 2 * len(rows) + SPARE:
                self._bundles = {each.bundles: each.bundles for each in self._parsed.values() if each is not None}
            return list(self._parsed.values())

    def _waiting(self, workload_id: str, tenant: str, queued_ms: int, text: str) -> Waiting | None:
        """Return a workload, parsed anew only where no other has the very same spec."""
        if text not in self._specs:
            if len(self._specs) >= MOST_SPECS:
                self._specs.clear()
            try:
                self._specs[text] = self._like(WorkloadSpec.model_validate_json(text))
            except (PolyrayError, ValidationError):
                # One row that an older version wrote must not stop everybody's scheduling.
                log.exception("unreadable_workload", workload=workload_id, tenant=tenant)
                return None
        return replace(self._specs[text], workload_id=workload_id, tenant=tenant, queued_ms=queued_ms)

    def _like(self, spec: WorkloadSpec) -> Waiting:
        """Return what all workloads of a spec have in common."""
        return Waiting(
            workload_id="",
            tenant="",
            bundles=self._bundles.setdefault(spec.bundles, spec.bundles),
            capacity=self._capacities.setdefault(spec.capacity, spec.capacity),
            priority=PRIORITIES[spec.priority],
            queued_ms=0,
            max_wait_ms=spec.max_wait_ms,
            max_cost_usd_micros=spec.max_cost_usd_micros,
            max_duration_ms=spec.max_duration_ms,
            kind=spec.kind,
        )


def _rest_until(not_before_ms: int | None, now_ms: int) -> int | None:
    """Return the end of a rest that is not over; one longer than any was set before the clock went back."""
    if not_before_ms is None or not now_ms < not_before_ms <= now_ms + 2 * LONGEST_MS:
        return None
    return not_before_ms
