"""Killing one worker of a running workload, as a crash would: to see that training goes on."""

from __future__ import annotations

from sqlalchemy import select

from polyray.core.errors import Conflict, Invalid, NotFound
from polyray.core.faultpoints import outside
from polyray.core.lifecycle import WorkloadState
from polyray.store.engine import Store
from polyray.store.tables import Lease, Workload
from polyray.tenants.slices import Fabric


def kill_worker(store: Store, fabric: Fabric, workload_id: str, rank: int) -> None:
    """Kill the slice of `rank` with -9. Its lease stays; the platform starts a new slice under it.

    Raises:
        Conflict: if the workload does not run.
        Invalid: if it has no worker of that rank.
    """
    with store.read() as session:
        workload = session.get(Workload, workload_id)
        if workload is None:
            raise NotFound("job", workload_id)
        if workload.state != WorkloadState.RUNNING or workload.cluster_id is None:
            raise Conflict(f"it is {workload.state}", hint="only a running job has workers")
        leases = session.scalars(select(Lease).where(Lease.cluster_id == workload.cluster_id)).all()
    by_rank = {lease.rank: lease.lease_id for lease in leases}
    ranks = sorted(by_rank)[1:] or [0]
    if rank not in ranks:
        raise Invalid(f"there is no worker of rank {rank}", field="rank", hint=f"its workers are {ranks}")
    with outside("fabric.kill_slice"):
        fabric.kill_slice(by_rank[rank])
