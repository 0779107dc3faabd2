"""What the rows say is running may have ended since: the core is asked, and believed."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.lifecycle import WORKLOAD, ClusterState
from polyray.store.tables import Cluster, Workload
from polyray.tenants.cluster_plan import Loss


def doubt(session: Session, reason: str) -> None:
    """Mark every living cluster as one that the core has yet to show.

    The next leader lets go on what the core holds as the rows say. What it does not hold was ended by the platform
    (a restore, an end without draining): its workload waits again, and that costs it no retry.
    """
    ended = {state.value for state in WORKLOAD.terminal}
    rows = session.execute(
        select(Cluster, Workload)
        .join(Workload, Workload.workload_id == Cluster.workload_id)
        .where(Cluster.state != ClusterState.GONE.value, Cluster.stop_requested_ms.is_(None), Cluster.loss == "")
    )
    for cluster, workload in rows.all():
        if workload.state not in ended:
            cluster.loss, cluster.loss_reason = Loss.SHUTDOWN.value, reason
