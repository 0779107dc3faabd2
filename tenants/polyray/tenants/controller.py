"""Brings each cluster to what is wanted of it: observe, plan, apply.

A row is written before any call to the core, and every call is idempotent by the ids in the row, so a
crash between the two is finished by the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.clock import Clock
from polyray.core.errors import NotFound, Unavailable
from polyray.core.layout import Layout
from polyray.core.lifecycle import ClusterState, LeaseState, NodeState
from polyray.core.reconcile import Done
from polyray.core.resources import CPU, MEMORY, Resources, is_gpu
from polyray.core.settings import Settings
from polyray.core.spec import Kind, WorkloadSpec
from polyray.store.engine import Store
from polyray.store.steps import note, step
from polyray.store.tables import Cluster, Lease, Node, Tenant, Workload
from polyray.tenants import ports
from polyray.tenants.cluster_plan import (
    Action,
    HoldGang,
    Loss,
    Member,
    Move,
    NewSlice,
    Observed,
    ReleaseGang,
    SendSlice,
    Wait,
    plan,
)
from polyray.tenants.observer import Observer, View
from polyray.tenants.slices import Fabric, Gang, GangState, LeaseSpec, Role, SliceSpec

log = structlog.get_logger(__name__)

#: A cluster that waits for something is looked at so often, besides being woken.
POLL_SECONDS = 1.0
#: Ray's object store takes this share of a slice's memory, and refuses to start below its minimum.
OBJECT_STORE_SHARE = 4
OBJECT_STORE_MIN_BYTES = 80 * 2**20


@dataclass(frozen=True)
class _Rows:
    """A cluster's rows, read together."""

    cluster: Cluster
    workload: Workload
    tenant: Tenant
    #: By rank.
    leases: tuple[Lease, ...]
    nodes: dict[str, Node]
    #: Lease -> port block.
    blocks: dict[str, int]


class ClusterController:
    """The reconciler of kind `cluster`."""

    kind = "cluster"

    def __init__(
        self,
        *,
        store: Store,
        fabric: Fabric,
        observer: Observer,
        clock: Clock,
        settings: Settings,
        wake: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._fabric = fabric
        self._observer = observer
        self._clock = clock
        self._settings = settings
        self._layout = Layout(settings.store_root)
        self._wake = wake
        #: Cluster -> monotonic seconds since when a lease actor has been missing. A restart forgets it,
        #: which only makes the platform more patient.
        self._missing_since: dict[str, float] = {}

    def pending(self) -> list[str]:
        with self._store.read() as session:
            return list(session.scalars(select(Cluster.cluster_id).where(Cluster.state != ClusterState.GONE.value)))

    def reconcile(self, key: str) -> Done:
        with self._store.read() as session:
            rows = _read(session, key)
        if rows is None or rows.cluster.state == ClusterState.GONE:
            self._missing_since.pop(key, None)
            return Done(forget=True)
        observed = self._observe(rows, self._observer.view())
        actions = plan(observed)
        again: float | None = None
        for action in actions:
            if self._apply(action, rows):
                again = POLL_SECONDS
        if any(isinstance(action, Move) for action in actions):
            return Done(again_seconds=0.0)
        return Done(again_seconds=again)

    def _observe(self, rows: _Rows, view: View) -> Observed:
        cluster_id = rows.cluster.cluster_id
        gang = view.gangs.get(cluster_id)
        members = []
        for lease in rows.leases:
            status = view.slices.get(lease.lease_id)
            node = rows.nodes[lease.node_id]
            members.append(
                Member(
                    rank=lease.rank,
                    generation=lease.generation,
                    node_alive=node.state in {NodeState.READY, NodeState.CORDONED},
                    seen=status.state if status else None,
                    seen_generation=status.generation if status else 0,
                    detail=status.detail if status else "",
                )
            )
        missing = rows.cluster.state != ClusterState.GRANTING and any(m.seen is None for m in members)
        since = self._missing_since.setdefault(cluster_id, view.at) if missing else view.at
        if not missing:
            self._missing_since.pop(cluster_id, None)
        return Observed(
            state=ClusterState(rows.cluster.state),
            stop_requested=rows.cluster.stop_requested_ms is not None,
            gang=gang.state if gang else GangState.ABSENT,
            gang_detail=gang.detail if gang else "",
            members=tuple(members),
            missing_seconds=view.at - since,
        )

    def _apply(self, action: Action, rows: _Rows) -> bool:
        """Do one action; return whether to look again soon."""
        match action:
            case HoldGang():
                self._fabric.grant(_gang(rows))
                self._observer.hurry()
            case NewSlice(rank, reason):
                self._new_slice(rows.cluster.cluster_id, rank, reason)
            case SendSlice(rank):
                self._send_slice(rows, rank)
            case Move(state, reason, loss):
                self._move(rows.cluster.cluster_id, state, reason, loss)
            case ReleaseGang():
                if self._fabric.release(rows.cluster.cluster_id).state is GangState.ABSENT:
                    self._finish(rows.cluster.cluster_id)
                    return False
            case Wait():
                pass
        return True

    def _new_slice(self, cluster_id: str, rank: int, reason: str) -> None:
        with self._store.write() as session:
            rows = _read(session, cluster_id)
            assert rows is not None
            lease, now_ms = rows.leases[rank], self._clock.now_ms()
            if lease.generation:
                note(session, "lease", lease.lease_id, tenant=lease.tenant, now_ms=now_ms, reason=reason)
            for each in _without_ports(rows, rank):
                ports.allocate(
                    session,
                    each.lease_id,
                    first_port=self._settings.slice_ports_start,
                    end_port=self._settings.slice_ports_end,
                    now_ms=now_ms,
                )
            lease.generation += 1
            session.flush()
            rows = _read(session, cluster_id)
        assert rows is not None
        self._send_slice(rows, rank)

    def _send_slice(self, rows: _Rows, rank: int) -> None:
        try:
            self._fabric.start_slice(slice_spec(rows, rank, self._settings, self._layout))
        except NotFound as error:
            raise Unavailable(f"the core does not show lease {rows.leases[rank].lease_id} yet") from error

    def _move(self, cluster_id: str, state: ClusterState, reason: str, loss: Loss | None) -> None:
        with self._store.write() as session:
            rows = _read(session, cluster_id)
            assert rows is not None
            cluster, now_ms = rows.cluster, self._clock.now_ms()
            step(session, cluster, state, now_ms=now_ms, reason=reason)
            if loss is not None:
                cluster.loss, cluster.loss_reason = loss.value, reason
            if state is ClusterState.READY and cluster.ready_ms is None:
                cluster.ready_ms = now_ms
            for lease in rows.leases:
                if state is ClusterState.STARTING_HEAD:
                    step(session, lease, LeaseState.ACTIVE, now_ms=now_ms)
                    lease.active_ms = now_ms
                elif state is ClusterState.STOPPING and lease.state != LeaseState.RELEASING:
                    step(session, lease, LeaseState.RELEASING, now_ms=now_ms)
        log.info("cluster_moved", cluster=cluster_id, state=state.value, reason=reason)
        self._wake("workload", rows.workload.workload_id)
        self._wake("routes", "all")

    def _finish(self, cluster_id: str) -> None:
        with self._store.write() as session:
            rows = _read(session, cluster_id)
            assert rows is not None
            now_ms = self._clock.now_ms()
            for lease in rows.leases:
                step(session, lease, LeaseState.RELEASED, now_ms=now_ms)
                lease.released_ms = now_ms
                ports.release(session, lease.lease_id, now_ms=now_ms)
            step(session, rows.cluster, ClusterState.GONE, now_ms=now_ms)
            rows.cluster.ended_ms = now_ms
        log.info("cluster_gone", cluster=cluster_id)
        self._wake("workload", rows.workload.workload_id)
        self._wake("broker", "cycle")
        for node_id in rows.nodes:
            self._wake("node", node_id)


def _read(session: Session, cluster_id: str) -> _Rows | None:
    cluster = session.get(Cluster, cluster_id)
    if cluster is None:
        return None
    workload = session.get_one(Workload, cluster.workload_id)
    leases = tuple(session.scalars(select(Lease).where(Lease.cluster_id == cluster_id).order_by(Lease.rank)))
    nodes = {lease.node_id: session.get_one(Node, lease.node_id) for lease in leases}
    held = {lease.lease_id: ports.block_of(session, lease.lease_id) for lease in leases}
    blocks = {lease_id: index for lease_id, index in held.items() if index is not None}
    return _Rows(cluster, workload, session.get_one(Tenant, cluster.tenant), leases, nodes, blocks)


def _without_ports(rows: _Rows, rank: int) -> list[Lease]:
    """Return the leases that need a fresh block for a start of `rank`: all of a gang at once for its first.

    Gangs that took their blocks one by one could wait for each other for ever.
    """
    started = [lease for lease in rows.leases if lease.rank == rank and lease.generation]
    return started or [lease for lease in rows.leases if lease.lease_id not in rows.blocks]


def _gang(rows: _Rows) -> Gang:
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


def slice_spec(rows: _Rows, rank: int, settings: Settings, layout: Layout) -> SliceSpec:
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
