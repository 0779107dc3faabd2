"""A cluster's rows, and what they ask of the core: its gang, and each slice to start."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.layout import Layout
from polyray.core.resources import CPU, MEMORY, Resources, is_gpu
from polyray.core.settings import Settings
from polyray.core.spec import Kind, WorkloadSpec
from polyray.store.tables import Cluster, Lease, Node, Tenant, Workload
from polyray.tenants import ports
from polyray.tenants.slices import Gang, LeaseSpec, Role, SliceSpec

#: Ray's object store takes this share of a slice's memory, and refuses to start below its minimum.
OBJECT_STORE_SHARE = 4
OBJECT_STORE_MIN_BYTES = 80 * 2**20


@dataclass(frozen=True)
class ClusterRows:
    """A cluster's rows, read together."""

    cluster: Cluster
    workload: Workload
    tenant: Tenant
    #: By rank.
    leases: tuple[Lease, ...]
    nodes: dict[str, Node]
    #: Lease -> port block.
    blocks: dict[str, int]


def read_cluster(session: Session, cluster_id: str) -> ClusterRows | None:
    """Return a cluster with all that belongs to it; None if there is none."""
    cluster = session.get(Cluster, cluster_id)
    if cluster is None:
        return None
    workload = session.get_one(Workload, cluster.workload_id)
    leases = tuple(session.scalars(select(Lease).where(Lease.cluster_id == cluster_id).order_by(Lease.rank)))
    nodes = {lease.node_id: session.get_one(Node, lease.node_id) for lease in leases}
    held = {lease.lease_id: ports.block_of(session, lease.lease_id) for lease in leases}
    blocks = {lease_id: index for lease_id, index in held.items() if index is not None}
    return ClusterRows(cluster, workload, session.get_one(Tenant, cluster.tenant), leases, nodes, blocks)


def without_ports(rows: ClusterRows, rank: int) -> list[Lease]:
    """Return the leases that need a fresh block for a start of `rank`: all of a gang at once for its first.

    Gangs that took their blocks one by one could wait for each other for ever.
    """
    started = [lease for lease in rows.leases if lease.rank == rank and lease.generation]
    return started or [lease for lease in rows.leases if lease.lease_id not in rows.blocks]


def gang_of(rows: ClusterRows) -> Gang:
    """Return its leases as the core is asked for them, all together."""
    return Gang(
        cluster_id=rows.cluster.cluster_id,
        leases=tuple(
            LeaseSpec(
                lease_id=lease.lease_id,
                epoch=lease.epoch,
                node_id=lease.node_id,
                cpu_milli=lease.resources.get(CPU, 0),
                gpu_milli=sum(amount for flavor, amount in lease.resources.items() if is_gpu(flavor)),
                memory_bytes=lease.resources.get(MEMORY, 0),
            )
            for lease in rows.leases
        ),
    )


def slice_spec(rows: ClusterRows, rank: int, settings: Settings, layout: Layout) -> SliceSpec:
    """Return what the node needs to start the slice of `rank`.

    There are two cases for the head: of a gang of one it carries the bundle; of a larger gang it shows
    its Ray no cpus and no GPUs, so that no task lands beside the driver.
    """
    lease, head = rows.leases[rank], rows.leases[0]
    spec = WorkloadSpec.model_validate(rows.workload.spec)
    carries = rank > 0 or len(rows.leases) == 1
    resources = Resources(lease.resources)
    gpus = sum(resources[flavor] for flavor in resources if is_gpu(flavor))
    address = ports.address_of(rows.blocks[lease.lease_id], settings.slice_ports_start)
    head_address = ports.address_of(rows.blocks[head.lease_id], settings.slice_ports_start)
    object_store = max(resources[MEMORY] // OBJECT_STORE_SHARE, OBJECT_STORE_MIN_BYTES)
    run_dir = layout.run(rows.cluster.tenant, rows.workload.workload_id)
    return SliceSpec(
        lease_id=lease.lease_id,
        cluster_id=rows.cluster.cluster_id,
        tenant=rows.cluster.tenant,
        tenant_uid=rows.tenant.uid,
        epoch=lease.epoch,
        generation=lease.generation,
        role=Role.HEAD if rank == 0 else Role.WORKER,
        rank=rank,
        address=address,
        gcs_address=head_address.gcs,
        cluster_secret=rows.cluster.secret,
        num_cpus_milli=resources[CPU] if carries else 0,
        num_gpus=-(-gpus // 1000) if carries else 0,
        gpu_indices=tuple(int(index) for index in lease.devices),
        memory_bytes=max(resources[MEMORY] - object_store, 2**27),
        object_store_bytes=object_store,
        dashboard=spec.kind is Kind.SESSION,
        ray_client=spec.kind is Kind.SESSION,
        labels={"polyray/capacity": rows.nodes[lease.node_id].capacity_type},
        env={
            **spec.env,
            "POLYRAY_RUN_DIR": str(run_dir),
            "POLYRAY_WORKLOAD_ID": rows.workload.workload_id,
            "POLYRAY_TENANT": rows.cluster.tenant,
            "POLYRAY_ATTEMPT": str(rows.cluster.attempt),
            "POLYRAY_DATASETS_DIR": str(run_dir / "datasets"),
            "POLYRAY_WORKERS": str(spec.workers),
            "POLYRAY_SERVE_IP": head_address.ip,
            "POLYRAY_SERVE_PORT": str(head_address.serve_port),
            "PYTHONPATH": str(run_dir / "code"),
        },
        run_dir=str(run_dir),
    )
