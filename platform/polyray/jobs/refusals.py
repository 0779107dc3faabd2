"""Whether a request can ever run, answered at submit: the broker's own word, remembered for all requests alike."""

from __future__ import annotations

import threading

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from polyray.broker.feasibility import feasible
from polyray.broker.snapshot import NodeView, Offering, TenantView
from polyray.core.explain import Explanation
from polyray.core.resources import Resources
from polyray.core.spec import WorkloadSpec
from polyray.jobs.snapshots import coming, node_views
from polyray.store.tables import Node, Quota, Tenant

#: Answers that are remembered.
MOST = 1000

#: Put together once: this is asked at each submit.
_COMING = select(Node.node_id).where(coming()).order_by(Node.node_id)
_QUOTAS = (
    select(Quota.flavor, Quota.nominal, Quota.borrowing_limit)
    .select_from(Tenant)
    .outerjoin(Quota, Quota.tenant == Tenant.name)
    .where(Tenant.name == bindparam("tenant"))
    .order_by(Quota.flavor)
)


class Refusals:
    """Thread-safe. What is remembered holds for the same quota, machines and offerings alone."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        #: As if nothing ran on them; what a node offers never changes.
        self._nodes: dict[str, NodeView] = {}
        self._told: dict[object, Explanation | None] = {}

    def of(
        self, session: Session, tenant: str, spec: WorkloadSpec, offerings: tuple[Offering, ...]
    ) -> Explanation | None:
        """Return why a workload of `tenant` can never run, with the nearest one that can; None if it can."""
        rows = session.execute(_QUOTAS, {"tenant": tenant}).all()
        quotas = [row for row in rows if row[0] is not None]
        nominal = Resources({flavor: amount for flavor, amount, _ in quotas})
        borrowing = Resources({flavor: amount for flavor, _, amount in quotas})
        view = TenantView(tenant, nominal, borrowing, Resources(), suspended=not rows)
        ids = tuple(session.scalars(_COMING))
        asked = (view, spec.bundles, spec.capacity, spec.kind, ids, offerings)
        with self._mutex:
            if asked not in self._told:
                if len(self._told) >= MOST:
                    self._told.clear()
                nodes = self._views(session, ids)
                self._told[asked] = feasible(spec.bundles, spec.capacity, view, nodes, offerings, kind=spec.kind)
            return self._told[asked]

    def _views(self, session: Session, ids: tuple[str, ...]) -> list[NodeView]:
        new = [node_id for node_id in ids if node_id not in self._nodes]
        rows = session.scalars(select(Node).where(Node.node_id.in_(new))).all() if new else ()
        known = self._nodes | {view.node_id: view for view in node_views(session, rows, ())}
        self._nodes = {node_id: known[node_id] for node_id in ids}
        return list(self._nodes.values())
