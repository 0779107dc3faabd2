"""Which nodes are at rest: ready, with nothing to be done about them since all that counts was as it is now.

All nodes are looked at together, by a few queries, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from polyray.autoscaler.sightings import Sightings
from polyray.core.lifecycle import WORKLOAD, LeaseState, NodeState
from polyray.store.tables import Lease, Node, Workload

LIVING = Node.state.in_([state.value for state in NodeState if state is not NodeState.TERMINATED])
#: By name, since an index finds what a column is and not what it is not.
HELD = Lease.state.in_([state.value for state in LeaseState if state is not LeaseState.RELEASED])
_ENDED = [state.value for state in WORKLOAD.terminal]

#: All that decides what is done about a node, time aside.
Sign = tuple[object, ...]


class NodesAtRest:
    def __init__(self, sightings: Sightings) -> None:
        self._sightings = sightings
        self._resting: dict[str, Sign] = {}

    def settle(self, node_id: str, sign: Sign | None) -> None:
        """Note that nothing was to be done about a ready node while it was as `sign` says."""
        if sign is not None:
            self._resting[node_id] = sign

    def stir(self, node_id: str) -> None:
        self._resting.pop(node_id, None)

    def restless(self, session: Session, now_ms: int) -> list[str]:
        """Return the nodes that something may have to be done about."""
        signs = self.signs(session, now_ms)
        return [node_id for node_id, sign in signs.items() if sign is None or self._resting.get(node_id) != sign]

    def signs(self, session: Session, now_ms: int, only: str | None = None) -> dict[str, Sign | None]:
        """Return the sign of every living node (or of one); None for one that never rests as it is."""
        row = select(Node.node_id, Node.provider, Node.launched_for, Node.state, Node.stop_requested_ms)
        row = row.add_columns(Node.idle_since_ms, Node.ray_node_id, Node.host, Node.billed_from_ms, Node.billed_to_ms)
        leases = select(Lease.node_id, func.count()).where(HELD).group_by(Lease.node_id)
        if only is not None:
            row, leases = row.where(Node.node_id == only), leases.where(Lease.node_id == only)
        rows: list[tuple[Any, ...]] = [tuple(each) for each in session.execute(row.where(LIVING))]
        held: dict[str, int] = dict(session.execute(leases).all())
        over = _ended(session, {each[2] for each in rows if each[2] is not None})
        core = self._sightings.core_nodes()
        found: dict[str, Sign | None] = {}
        for each in rows:
            node_id, provider, launched_for, state, stop_ms, idle_ms = each[:6]
            instances = self._sightings.instances(provider)
            seen = None if core is None else core.get(node_id)
            dead = core is not None and (seen is None or not seen.alive)
            # Time alone decides of what is dead, and of an idle time that a clock put back has left in the future.
            if state != NodeState.READY or stop_ms is not None or dead or (idle_ms is not None and idle_ms > now_ms):
                found[node_id] = None
                continue
            instance = None if instances is None else instances.get(node_id)
            found[node_id] = (
                idle_ms,
                *each[6:],
                held.get(node_id, 0),
                launched_for in over,
                core is None,
                seen,
                instance,
            )
        return found


def _ended(session: Session, owners: Iterable[str]) -> set[str]:
    ended = select(Workload.workload_id).where(Workload.workload_id.in_(owners), Workload.state.in_(_ENDED))
    return set(session.scalars(ended)) if owners else set()
