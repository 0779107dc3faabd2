"""Brings each cluster to what is wanted of it: observe, plan, apply.

A row is written before any call to the core, and every call is idempotent by the ids in the row, so a
crash between the two is finished by the next run.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from sqlalchemy import select

from polyray.core.clock import Clock, Stopwatch
from polyray.core.errors import NotFound, Unavailable
from polyray.core.faultpoints import outside
from polyray.core.layout import Layout
from polyray.core.lifecycle import ClusterState, LeaseState, NodeState, WorkloadState
from polyray.core.reconcile import Done
from polyray.core.settings import Settings
from polyray.core.spec import Kind
from polyray.store.engine import Store
from polyray.store.steps import note, step
from polyray.store.tables import Cluster, Lease, Node
from polyray.tenants import ports
from polyray.tenants.cluster_plan import (
    LASTING_MS,
    Action,
    Believe,
    HoldGang,
    Loss,
    Member,
    Move,
    NewSlice,
    Observed,
    ReleaseGang,
    SendSlice,
    Wait,
    is_missing,
    plan,
)
from polyray.tenants.cluster_rows import ClusterRows, gang_of, read_cluster, slice_spec, without_ports
from polyray.tenants.observer import Look, Observer, View
from polyray.tenants.slices import Fabric, GangState

log = structlog.get_logger(__name__)

_LIVING = Cluster.state.in_([state.value for state in ClusterState if state is not ClusterState.GONE])
_HELD = [state.value for state in LeaseState if state is not LeaseState.RELEASED]
_HOLDING = [NodeState.READY.value, NodeState.CORDONED.value]

#: A cluster that waits for something is looked at so often, besides being woken.
POLL_SECONDS = 1.0


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
        self._granted = Stopwatch(clock)
        #: Ready clusters for which nothing was to be done, with how they looked then.
        self._calm: dict[str, Look] = {}

    def pending(self) -> list[str]:
        """Return every cluster on its way, those ready ones that changed, and all that the core holds for nobody.

        What changed is found here whoever was woken for it: by the row, by the view, and by the nodes' rows.
        """
        held = self._held()
        with self._store.read() as session:
            rows = session.execute(select(Cluster.cluster_id, Cluster.state, Cluster.stop_requested_ms).where(_LIVING))
            living = {row[0]: (row[1], row[2]) for row in rows}
            stranded = set(
                session.scalars(
                    select(Lease.cluster_id)
                    .join(Node, Node.node_id == Lease.node_id)
                    .where(Lease.state.in_(_HELD), Node.state.not_in(_HOLDING))
                )
            )
        self._calm = {cluster_id: self._calm[cluster_id] for cluster_id in living if cluster_id in self._calm}
        view = self._observer.latest()
        restless = [
            cluster_id
            for cluster_id, (state, stop_ms) in living.items()
            if state != ClusterState.READY
            or stop_ms is not None
            or cluster_id in stranded
            or cluster_id not in self._calm
            or (view is not None and self._calm[cluster_id] != view.look(cluster_id))
        ]
        return [*restless, *(cluster_id for cluster_id in held if cluster_id not in living)]

    def reconcile(self, key: str) -> Done:
        with self._store.read() as session:
            rows = read_cluster(session, key)
        if rows is None or rows.cluster.state == ClusterState.GONE:
            self._missing_since.pop(key, None)
            self._granted.forget(key)
            if key in self._held():
                # A row is written before the core is asked: whoever asked for this, nobody owns it.
                log.info("released_again", cluster=key, state=self._release(key).value)
            return Done(forget=True)
        view = self._observer.view()
        actions = plan(self._observe(rows, view))
        if not actions:
            self._calm[key] = view.look(key)
            return Done(forget=True)
        again: float | None = None
        for action in actions:
            if self._apply(action, rows):
                again = POLL_SECONDS
        if any(isinstance(action, Move) for action in actions):
            return Done(again_seconds=0.0)
        return Done(again_seconds=again)

    def _observe(self, rows: ClusterRows, view: View) -> Observed:
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
                    short_starts=lease.short_starts,
                    node_alive=node.state in {NodeState.READY, NodeState.CORDONED},
                    seen=status.state if status else None,
                    seen_generation=status.generation if status else 0,
                    detail=status.detail if status else "",
                )
            )
        state = ClusterState(rows.cluster.state)
        missing = state is not ClusterState.GRANTING and any(is_missing(state, member) for member in members)
        since = self._missing_since.setdefault(cluster_id, view.at) if missing else view.at
        if not missing:
            self._missing_since.pop(cluster_id, None)
        return Observed(
            state=state,
            stop_requested=rows.cluster.stop_requested_ms is not None,
            gang=gang.state if gang else GangState.ABSENT,
            gang_detail=gang.detail if gang else "",
            members=tuple(members),
            missing_seconds=view.at - since,
            doubted=bool(rows.cluster.loss),
            granted_seconds=self._granted.lasted_ms(cluster_id, rows.cluster.created_ms) / 1000,
        )

    def _has_news(self, rows: ClusterRows) -> bool:
        """Return whether the head tells that its job's program ended well, which its workload has not heard yet.

        With the gang that word is gone, and work that was done would be done again.
        """
        workload, status = rows.workload, self._observer.view().slices.get(rows.leases[0].lease_id)
        if workload.kind != Kind.JOB or workload.state not in {WorkloadState.STARTING, WorkloadState.RUNNING}:
            return False
        driver = status.driver if status else None
        if driver is None or driver.driver_id != f"{workload.workload_id}.{workload.attempt}" or driver.running:
            return False
        self._wake("workload", workload.workload_id)
        return driver.exit_code == 0 and workload.cluster_id == rows.cluster.cluster_id

    def _held(self) -> tuple[str, ...]:
        """Return the clusters that the core shows a gang of; none while it does not answer."""
        try:
            return tuple(self._observer.view().gangs)
        except Unavailable:
            return ()

    def _apply(self, action: Action, rows: ClusterRows) -> bool:
        """Do one action; return whether to look again soon."""
        match action:
            case HoldGang():
                with outside("fabric.grant"):
                    self._fabric.grant(gang_of(rows))
                self._observer.hurry()
            case NewSlice(rank, reason):
                self._new_slice(rows.cluster.cluster_id, rank, reason)
            case SendSlice(rank):
                self._send_slice(rows, rank)
            case Move(state, reason, loss):
                self._move(rows.cluster.cluster_id, state, reason, loss)
            case Believe():
                self._believe(rows.cluster.cluster_id)
            case ReleaseGang():
                if self._has_news(rows):
                    return True
                if self._release(rows.cluster.cluster_id) is GangState.ABSENT:
                    self._finish(rows.cluster.cluster_id)
                    return False
            case Wait():
                pass
        return True

    def _new_slice(self, cluster_id: str, rank: int, reason: str) -> None:
        with self._store.write() as session:
            rows = read_cluster(session, cluster_id)
            assert rows is not None
            lease, now_ms = rows.leases[rank], self._clock.now_ms()
            if lease.generation:
                note(session, "lease", lease.lease_id, tenant=lease.tenant, now_ms=now_ms, reason=reason)
            for each in without_ports(rows, rank):
                ports.allocate(
                    session,
                    each.lease_id,
                    first_port=self._settings.slice_ports_start,
                    end_port=self._settings.slice_ports_end,
                    now_ms=now_ms,
                )
            lease.generation += 1
            began_ms, lease.slice_started_ms = lease.slice_started_ms, now_ms
            lasted = began_ms is not None and now_ms - began_ms >= LASTING_MS
            lease.short_starts = 1 if lasted else lease.short_starts + 1
            session.flush()
            rows = read_cluster(session, cluster_id)
        assert rows is not None
        self._send_slice(rows, rank)

    def _send_slice(self, rows: ClusterRows, rank: int) -> None:
        try:
            with outside("fabric.start_slice"):
                self._fabric.start_slice(slice_spec(rows, rank, self._settings, self._layout))
        except NotFound as error:
            raise Unavailable(f"the core does not show lease {rows.leases[rank].lease_id} yet") from error

    def _release(self, cluster_id: str) -> GangState:
        with outside("fabric.release"):
            return self._fabric.release(cluster_id).state

    def _move(self, cluster_id: str, state: ClusterState, reason: str, loss: Loss | None) -> None:
        with self._store.write() as session:
            rows = read_cluster(session, cluster_id)
            assert rows is not None
            cluster, now_ms = rows.cluster, self._clock.now_ms()
            step(session, cluster, state, now_ms=now_ms, reason=reason)
            # What a restore doubted and the core does not have was lost by the restore.
            if loss is not None and not cluster.loss:
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

    def _believe(self, cluster_id: str) -> None:
        with self._store.write() as session:
            cluster = session.get_one(Cluster, cluster_id)
            cluster.loss = cluster.loss_reason = ""
            told = "its leases were found in the core after the restore"
            note(session, "cluster", cluster_id, tenant=cluster.tenant, now_ms=self._clock.now_ms(), reason=told)
        log.info("cluster_believed", cluster=cluster_id)

    def _finish(self, cluster_id: str) -> None:
        with self._store.write() as session:
            rows = read_cluster(session, cluster_id)
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
