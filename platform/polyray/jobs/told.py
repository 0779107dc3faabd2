"""What workloads that wait are told, and what of it is stored already.

A long queue is told the same: rows of one explanation are written together, few at a time, so that nobody
waits long for the database's writer; and only where it differs from what was stored before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from polyray.broker.snapshot import Waiting
from polyray.core.clock import Clock
from polyray.core.explain import Explanation
from polyray.core.lifecycle import WorkloadState
from polyray.store.engine import Store
from polyray.store.tables import Workload

#: Rows of one transaction, and of one call.
_BATCH = 200
_MOST = 1000
#: What is stored is read anew so often: another control plane may have written it.
_KNOWN_SECONDS = 60.0


class Told:
    """The memory of what is stored. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Workload -> what is stored (None: nothing), and at which write of ours, the latest highest.
        self._stored: dict[str, tuple[Explanation | None, int]] = {}
        self._since = clock.monotonic()
        self._writes = 0

    def forget(self, workload_id: str) -> None:
        """Its row was written by somebody else."""
        self._stored.pop(workload_id, None)

    def tell(self, store: Store, waits: Sequence[tuple[Waiting, Explanation]]) -> bool:
        """Store why each workload waits, where that changed; return whether all of it is stored."""
        self._recall(store, [waiting.workload_id for waiting, _ in waits])
        changed = self._changed(waits)
        for start in range(0, min(len(changed), _MOST), _BATCH):
            batch = changed[start : min(start + _BATCH, _MOST)]
            self._writes += 1
            with store.write() as session:
                _write(session, batch)
            for workload_id, explanation in batch:
                self._stored[workload_id] = explanation, self._writes
        return len(changed) <= _MOST

    def _recall(self, store: Store, ids: list[str]) -> None:
        """Know what is stored of exactly these workloads."""
        now = self._clock.monotonic()
        known = self._stored if now - self._since < _KNOWN_SECONDS else {}
        if not known:
            self._since = now
        new = [workload_id for workload_id in ids if workload_id not in known]
        with store.read() as session:
            for start in range(0, len(new), _BATCH):
                rows = select(Workload.workload_id, Workload.explanation)
                for workload_id, stored in session.execute(
                    rows.where(Workload.workload_id.in_(new[start : start + _BATCH]))
                ):
                    known[workload_id] = Explanation(**stored) if stored else None, 0
        self._stored = {workload_id: known.get(workload_id, (None, 0)) for workload_id in ids}

    def _changed(self, waits: Iterable[tuple[Waiting, Explanation]]) -> list[tuple[str, Explanation]]:
        """Return what is to be written: first for those who were told nothing, then what was written longest ago."""
        same: dict[tuple[int, int], bool] = {}
        changed = []
        for waiting, explanation in waits:
            stored, written = self._stored[waiting.workload_id]
            pair = id(stored), id(explanation)
            if pair not in same:
                same[pair] = stored == explanation
            if not same[pair]:
                changed.append((stored is not None, written, waiting.workload_id, explanation))
        changed.sort(key=lambda each: each[:2])
        return [each[2:] for each in changed]


def _write(session: Session, batch: Iterable[tuple[str, Explanation]]) -> None:
    alike: dict[int, tuple[Explanation, list[str]]] = {}
    for workload_id, explanation in batch:
        alike.setdefault(id(explanation), (explanation, []))[1].append(workload_id)
    for explanation, ids in alike.values():
        waits = Workload.workload_id.in_(ids), Workload.state == WorkloadState.QUEUED.value
        session.execute(
            update(Workload).where(*waits).values(explanation=explanation.as_dict()),
            execution_options={"synchronize_session": False},
        )
