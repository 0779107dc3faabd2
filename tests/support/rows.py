"""Valid rows of every kind that has states, with the parents that the store's foreign keys ask for."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from polyray.store import steps
from polyray.store.tables import Cluster, Lease, Node, Tenant, Workload

NOW_MS = 1_790_000_000_000


def add_tenant(session: Session, name: str = "vision", *, uid: int = 60_001) -> Tenant:
    tenant = Tenant(name=name, display_name=name.title(), uid=uid, created_ms=NOW_MS)
    session.add(tenant)
    session.flush()
    return tenant


def add_workload(session: Session, workload_id: str = "job-0000000000a1", **values: Any) -> Workload:
    defaults: dict[str, Any] = {
        "kind": "job",
        "tenant": "vision",
        "project": "default",
        "name": "digits",
        "submitted_by": "ada",
        "spec": {"kind": "job", "name": "digits", "run": "true"},
        "created_ms": NOW_MS,
        "queued_ms": NOW_MS,
    }
    row = Workload(workload_id=workload_id, **{**defaults, **values})
    steps.created(session, row, now_ms=NOW_MS, reason="submitted")
    session.flush()
    return row


def add_cluster(session: Session, cluster_id: str = "clu-0000000000a1", **values: Any) -> Cluster:
    defaults: dict[str, Any] = {
        "workload_id": "job-0000000000a1",
        "tenant": "vision",
        "attempt": 1,
        "secret": "s",
        "created_ms": NOW_MS,
    }
    row = Cluster(cluster_id=cluster_id, **{**defaults, **values})
    steps.created(session, row, now_ms=NOW_MS, reason="granted")
    session.flush()
    return row


def add_node(session: Session, node_id: str = "nod-0000000000a1", **values: Any) -> Node:
    defaults: dict[str, Any] = {
        "pool": "rack",
        "provider": "local",
        "offering": {},
        "capacity_type": "reserved",
        "usd_micros_per_hour": 400_000,
        "resources": {"cpu": 2000, "memory": 2**32},
        "created_ms": NOW_MS,
    }
    row = Node(node_id=node_id, **{**defaults, **values})
    steps.created(session, row, now_ms=NOW_MS, reason="wanted")
    session.flush()
    return row


def add_lease(session: Session, lease_id: str = "lea-0000000000a1", **values: Any) -> Lease:
    defaults: dict[str, Any] = {
        "cluster_id": "clu-0000000000a1",
        "workload_id": "job-0000000000a1",
        "tenant": "vision",
        "project": "default",
        "node_id": "nod-0000000000a1",
        "rank": 0,
        "resources": {"cpu": 1000, "memory": 2**30},
        "devices": {},
        "epoch": 1,
        "granted_ms": NOW_MS,
    }
    row = Lease(lease_id=lease_id, **{**defaults, **values})
    steps.created(session, row, now_ms=NOW_MS, reason="granted")
    session.flush()
    return row


def add_one_of_each(session: Session) -> tuple[Workload, Cluster, Node, Lease]:
    add_tenant(session)
    return add_workload(session), add_cluster(session), add_node(session), add_lease(session)
