"""Whether a request can ever run, answered at submit: the broker's own word, remembered for all requests alike."""

from __future__ import annotations

import threading

from sqlalchemy import select
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
        there = session.scalar(select(Tenant.name).where(Tenant.name == tenant)) is not None
        quotas = select(Quota.flavor, Quota.nominal, Quota.borrowing_limit).where(Quota.tenant == tenant)
        rows = session.execute(quotas.order_by(Quota.flavor)).all()
        nominal = Resources({flavor: amount for flavor, amount, _ in rows})
        borrowing = Resources({flavor: amount for flavor, _, amount in rows})
        view = TenantView(tenant, nominal, borrowing, Resources(), suspended=not there)
        ids = tuple(session.scalars(select(Node.node_id).where(coming()).order_by(Node.node_id)))
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
