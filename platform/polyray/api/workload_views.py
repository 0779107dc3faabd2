"""Workload rows as they are shown, with their cluster and placements; a page costs four queries, not four a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.api.views import ClusterRef, Placement, WorkloadView
from polyray.core.lifecycle import LeaseState
from polyray.core.spec import Kind
from polyray.identity.tokens import Principal
from polyray.store.tables import Cluster, Lease, Node, Workload


def workload_views(
    session: Session, rows: Sequence[Workload], caller: Principal, *, gateway_url: str
) -> list[WorkloadView]:
    cluster_ids = [row.cluster_id for row in rows if row.cluster_id is not None]
    clusters = _clusters(session, cluster_ids) if cluster_ids else {}
    placements = _placements(session, cluster_ids) if cluster_ids else {}
    return [
        _view(
            row,
            row.spec if caller.tenant == row.tenant else _without_values(row.spec),
            clusters.get(row.cluster_id or ""),
            placements.get(row.cluster_id or "", []),
            f"{gateway_url}/serve/{row.name}/" if row.kind == Kind.SERVICE and gateway_url else None,
        )
        for row in rows
    ]


def workload_view(session: Session, row: Workload, caller: Principal, *, gateway_url: str) -> WorkloadView:
    return workload_views(session, [row], caller, gateway_url=gateway_url)[0]


def _clusters(session: Session, cluster_ids: Sequence[str]) -> dict[str, Cluster]:
    return {c.cluster_id: c for c in session.scalars(select(Cluster).where(Cluster.cluster_id.in_(cluster_ids)))}


def _placements(session: Session, cluster_ids: Sequence[str]) -> dict[str, list[Placement]]:
    found: dict[str, list[Placement]] = defaultdict(list)
    query = (
        select(Lease, Node)
        .join(Node, Node.node_id == Lease.node_id)
        .where(Lease.cluster_id.in_(cluster_ids), Lease.state != LeaseState.RELEASED)
        .order_by(Lease.rank)
    )
    for lease, node in session.execute(query):
        found[lease.cluster_id].append(
            Placement(
                rank=lease.rank,
                node_id=lease.node_id,
                pool=node.pool,
                capacity_type=node.capacity_type,
                simulated=node.simulated,
                state=lease.state,
                generation=lease.generation,
            )
        )
    return found


def _without_values(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec for an operator's eyes: what tenants put in their environment may be secret."""
    return {**spec, "env": dict.fromkeys(spec.get("env", {}), "(hidden)")}


def _view(
    row: Workload, spec: dict[str, Any], cluster: Cluster | None, placements: list[Placement], url: str | None
) -> WorkloadView:
    return WorkloadView(
        id=row.workload_id,
        kind=row.kind,
        tenant=row.tenant,
        project=row.project,
        name=row.name,
        state=row.state,
        state_reason=row.state_reason,
        attempt=row.attempt,
        retries=row.retries,
        submitted_by=row.submitted_by,
        spec=spec,
        explanation=row.explanation,
        exit_code=row.exit_code,
        stop_requested_ms=row.stop_requested_ms,
        created_ms=row.created_ms,
        queued_ms=row.queued_ms,
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        cluster=None
        if cluster is None
        else ClusterRef(id=cluster.cluster_id, state=cluster.state, ready_ms=cluster.ready_ms),
        placements=placements,
        url=url,
    )
