"""What the backup says is running was ended, with the platform, before the restore."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.lifecycle import WORKLOAD, ClusterState
from polyray.store.tables import Cluster, Workload
from polyray.tenants.cluster_plan import Loss

REASON = "the platform was restored from a backup"


def requeue(session: Session, *, now_ms: int) -> None:
    """Mark every living cluster as ended by a shutdown: what the core still has of it is released, and its workload
    waits again. That costs nobody a retry."""
    ended = {state.value for state in WORKLOAD.terminal}
    rows = session.execute(
        select(Cluster, Workload)
        .join(Workload, Workload.workload_id == Cluster.workload_id)
        .where(Cluster.state != ClusterState.GONE.value, Cluster.stop_requested_ms.is_(None))
    )
    for cluster, workload in rows.all():
        cluster.stop_requested_ms = now_ms
        if not cluster.loss and workload.state not in ended:
            cluster.loss, cluster.loss_reason = Loss.SHUTDOWN.value, REASON
