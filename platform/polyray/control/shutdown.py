"""Ending the platform on purpose: clusters first, then nodes, and nothing is lost.

What ran goes back to the queue without losing a retry, and runs again at the next start. The reconcilers do
the work; this only says what is wanted, and waits for it, bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from sqlalchemy import Select, select

from polyray.autoscaler.controller import NodeController
from polyray.core.clock import Clock
from polyray.core.lifecycle import WORKLOAD, ClusterState, WorkloadState
from polyray.store.engine import Store
from polyray.store.tables import Cluster, Workload
from polyray.tenants.cluster_plan import Loss

log = structlog.get_logger(__name__)

#: Below the supervisor's own patience with the server.
LIMIT_SECONDS = 75.0
LOOK_SECONDS = 0.3


def drain(store: Store, clock: Clock, nodes: NodeController, wake: Callable[[str, str], None]) -> bool:
    """End all clusters and nodes; return whether nothing was left within the limit.

    Asked again each time: a cycle of the broker that was under way may still add one.
    """
    waiting = threading.Event()
    deadline = clock.monotonic() + LIMIT_SECONDS
    while clock.monotonic() < deadline:
        nodes.shut_down()
        clusters = _ask_clusters_to_end(store, clock)
        if not clusters:
            with store.read() as session:
                reconciled = session.scalar(_unsettled()) is None
            if reconciled and nodes.all_gone():
                log.info("drained")
                return True
        for cluster_id in clusters:
            wake("cluster", cluster_id)
        waiting.wait(LOOK_SECONDS)
    log.warning("drained_in_part", clusters=clusters)
    return False


def _ask_clusters_to_end(store: Store, clock: Clock) -> list[str]:
    """Mark every living cluster as ended by the shutdown, and return those that are not gone yet."""
    with store.write() as session:
        living = session.scalars(select(Cluster).where(Cluster.state != ClusterState.GONE.value)).all()
        ended = {state.value for state in WORKLOAD.terminal}
        for cluster in living:
            if cluster.stop_requested_ms is None:
                cluster.stop_requested_ms = clock.now_ms()
                if not cluster.loss and session.get_one(Workload, cluster.workload_id).state not in ended:
                    cluster.loss, cluster.loss_reason = Loss.SHUTDOWN.value, "the platform was shut down"
        return [cluster.cluster_id for cluster in living]


def _unsettled() -> Select[str]:
    """Return the query for workloads that have yet to learn that their cluster is gone."""
    settled = [state.value for state in (*WORKLOAD.terminal, WorkloadState.QUEUED)]
    return select(Workload.workload_id).where(Workload.state.not_in(settled)).limit(1)
