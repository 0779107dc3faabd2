"""Applies the broker's plan: the one place where leases are granted and cloud nodes are asked for.

Planning reads a snapshot and may be overtaken; so each grant and each launch is one write transaction that
checks again on the rows themselves, and a plan that has become stale is dropped, to be made anew.

A cycle whose world has not changed is skipped, a long one is followed by a rest, and what one writes is
bounded: however long the queue is, whoever submits finds the processor and the database's writer free.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.broker.admission import violation
from polyray.broker.plan import plan
from polyray.broker.snapshot import Drain, Grant, Launch, Offering, Plan, Refusal, Snapshot
from polyray.core.clock import Clock
from polyray.core.ids import new_id
from polyray.core.lifecycle import LeaseState, NodeState, WorkloadState
from polyray.core.reconcile import Done
from polyray.jobs.signs import Signs, next_budget_ms, signs
from polyray.jobs.snapshots import is_coming, live_leases, node_views, snapshot, tenant_view
from polyray.jobs.told import Told
from polyray.jobs.waiting import WaitingRows
from polyray.reports.costs import cloud_spend
from polyray.store.engine import Store
from polyray.store.steps import created, step
from polyray.store.tables import Budget, Cluster, Lease, Node, Tenant, Workload

log = structlog.get_logger(__name__)

#: How often the queue is looked at when nobody wakes the broker: max_wait, idle nodes and budgets pass by themselves.
CYCLE_SECONDS = 2.0
#: After a plan that was overtaken, or not wholly applied.
STALE_SECONDS = 0.2
#: A plan is made anew at least so often, whatever changed.
FULL_SECONDS = 60.0
#: After a cycle the broker rests so many times as long as it took.
REST = 9
#: Grants of one cycle; what is beyond them is planned anew.
MOST_GRANTS = 100

KEY = "cycle"


class Scheduler:
    """The reconciler of kind `broker`; its one key is `cycle`.

    `cooling()` returns offerings that failed lately with when they may be tried again (milliseconds since
    the epoch). Where there may be another control plane, `store` is a `FencedStore`.
    """

    kind = "broker"

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        offerings: Callable[[], tuple[Offering, ...]],
        cooling: Callable[[], tuple[tuple[str, int], ...]],
        idle_seconds: Callable[[], int],
        wake: Callable[[str, str], None],
        waiting: WaitingRows | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._offerings = offerings
        self._cooling = cooling
        self._idle_seconds = idle_seconds
        self._wake = wake
        self._waiting = waiting or WaitingRows()
        self._told = Told(clock)
        #: The world that the last plan was made for and wholly applied to, and until when it holds
        #: (milliseconds since the epoch; monotonic seconds).
        self._settled: tuple[Signs, int | None, float] | None = None
        self._rest_until = float("-inf")

    def pending(self) -> list[str]:
        return [KEY]

    def reconcile(self, key: str) -> Done:
        began = self._clock.monotonic()
        if began < self._rest_until:
            return Done(again_seconds=self._rest_until - began)
        with self._store.read() as session:
            signs = self._signs(session)
            if self._is_settled(signs):
                return Done(again_seconds=CYCLE_SECONDS)
            seen = self._see(session)
            budgets_ms = next_budget_ms(session, seen.now_ms)
        self._settled = None
        decided = plan(seen)
        stale = self.apply(decided, seen)
        ended = self._clock.monotonic()
        self._rest_until = ended + min(REST * (ended - began), CYCLE_SECONDS)
        if stale:
            return Done(again_seconds=STALE_SECONDS)
        holds_ms = min((at for at in (decided.changes_ms, budgets_ms) if at is not None), default=None)
        self._settled = signs, holds_ms, ended + FULL_SECONDS
        return Done(again_seconds=CYCLE_SECONDS)

    def see(self) -> Snapshot:
        with self._store.read() as session:
            return self._see(session)

    def _see(self, session: Session) -> Snapshot:
        now_ms, idle_seconds = self._clock.now_ms(), self._idle_seconds()
        return snapshot(session, self._waiting, now_ms, self._offerings(), self._cooling(), idle_seconds)

    def _signs(self, session: Session) -> Signs:
        return *signs(session), self._offerings(), self._cooling(), self._idle_seconds()

    def _is_settled(self, now: Signs) -> bool:
        """Return whether a plan made now would decide nothing that the last one did not."""
        if self._settled is None:
            return False
        then, holds_ms, holds_seconds = self._settled
        passed = holds_ms is not None and self._clock.now_ms() >= holds_ms
        return now == then and not passed and self._clock.monotonic() < holds_seconds

    def apply(self, decided: Plan, seen: Snapshot) -> int:
        """Write a plan, each decision on its own; return how many had become stale or are yet to be written."""
        stale = sum(not self._grant(grant) for grant in decided.grants[:MOST_GRANTS])
        stale += len(decided.grants[MOST_GRANTS:])
        by_workload: dict[str, list[Launch]] = {}
        for launch in decided.launches:
            by_workload.setdefault(launch.workload_id, []).append(launch)
        for workload_id, launches in by_workload.items():
            stale += not self._launch(workload_id, launches, seen)
        stale += sum(not self._drain(drain) for drain in decided.drains)
        stale += sum(not self._refuse(refusal) for refusal in decided.refusals)
        return stale + (not self._told.tell(self._store, decided.waits))

    def _grant(self, grant: Grant) -> bool:
        """Give a gang its leases if all still holds: it waits, quota, nodes, room and devices."""
        with self._store.write() as session:
            now_ms = self._clock.now_ms()
            workload = session.get(Workload, grant.workload_id)
            if workload is None or not _waits(workload):
                return _dropped(grant.workload_id, "it waits no more")
            ids = {placement.node_id for placement in grant.placements}
            leases = live_leases(session, Lease.node_id.in_(ids))
            nodes = {node.node_id: node for node in session.scalars(select(Node).where(Node.node_id.in_(ids)))}
            views = {view.node_id: view for view in node_views(session, nodes.values(), leases)}
            if (reason := violation(grant.placements, views, tenant_view(session, workload.tenant))) is not None:
                return _dropped(grant.workload_id, reason)
            cluster = _write_grant(session, workload, grant, now_ms)
            for node in nodes.values():
                node.idle_since_ms = None
        self._told.forget(workload.workload_id)
        log.info("granted", workload=workload.workload_id, cluster=cluster.cluster_id, nodes=sorted(ids))
        for kind, key in (("cluster", cluster.cluster_id), ("workload", workload.workload_id)):
            self._wake(kind, key)
        return True

    def _launch(self, workload_id: str, launches: list[Launch], seen: Snapshot) -> bool:
        """Write the intents of a gang's nodes, all or none.

        Checked again are that it waits, that its nodes are those the plan knew, its tenant's budget, and how many
        nodes the offerings allow.
        """
        with self._store.write() as session:
            now_ms = self._clock.now_ms()
            workload = session.get(Workload, workload_id)
            if workload is None or not _waits(workload) or session.get_one(Tenant, workload.tenant).suspended:
                return _dropped(workload_id, "it waits no more")
            planned_on = {node.node_id for node in seen.nodes if node.launched_for == workload_id}
            living = session.scalars(select(Node).where(Node.state != NodeState.TERMINATED.value)).all()
            if {node.node_id for node in living if node.launched_for == workload_id and is_coming(node)} != planned_on:
                return _dropped(workload_id, "its nodes changed")
            estimate = sum(int(str(launch.receipt["estimated_usd_micros"])) for launch in launches)
            budget = session.get(Budget, workload.tenant)
            spent = cloud_spend(session, now_ms).get(workload.tenant, 0)
            if budget is not None and spent + estimate > budget.usd_micros_per_month:
                return _dropped(workload_id, "the budget is used up")
            for offering in {launch.offering for launch in launches}:
                there = sum(node.offering["name"] == offering.name for node in living)
                if there + sum(launch.offering == offering for launch in launches) > offering.max_nodes:
                    return _dropped(workload_id, f"all nodes of {offering.name} are there")
            nodes = [_intended(launch, now_ms) for launch in launches]
            for node in nodes:
                created(session, node, now_ms=now_ms, reason=f"launched for {workload_id}")
        for node in nodes:
            log.info("launch_intended", node=node.node_id, offering=node.offering["name"], workload=workload_id)
            self._wake("node", node.node_id)
        return True

    def _drain(self, drain: Drain) -> bool:
        with self._store.write() as session:
            node = session.get(Node, drain.node_id)
            if node is None or node.state != NodeState.READY:
                return True
            held = select(Lease.lease_id).where(Lease.node_id == node.node_id, Lease.state != LeaseState.RELEASED.value)
            if session.scalar(held.limit(1)) is not None:
                return _dropped(node.launched_for or "", f"node {node.node_id} is used again")
            step(session, node, NodeState.CORDONED, now_ms=self._clock.now_ms(), reason=drain.reason)
        log.info("node_cordoned", node=drain.node_id, reason=drain.reason)
        self._wake("node", drain.node_id)
        return True

    def _refuse(self, refusal: Refusal) -> bool:
        with self._store.write() as session:
            workload = session.get(Workload, refusal.workload_id)
            if workload is None or not _waits(workload):
                return True
            now_ms = self._clock.now_ms()
            step(session, workload, WorkloadState.FAILED, now_ms=now_ms, reason=refusal.explanation.cause)
            workload.explanation = refusal.explanation.as_dict()
            workload.ended_ms, workload.live_name = now_ms, None
        log.info("refused", workload=refusal.workload_id, cause=refusal.explanation.cause)
        self._wake("workload", refusal.workload_id)
        return True


def _waits(workload: Workload) -> bool:
    return workload.state == WorkloadState.QUEUED and workload.stop_requested_ms is None


def _dropped(workload_id: str, reason: str) -> bool:
    log.info("plan_overtaken", workload=workload_id, reason=reason)
    return False


def _write_grant(session: Session, workload: Workload, grant: Grant, now_ms: int) -> Cluster:
    """Write the cluster, its leases and the workload's step; the attempt's number is the leases' epoch."""
    attempt = workload.attempt + 1
    cluster = Cluster(
        cluster_id=new_id("cluster"),
        workload_id=workload.workload_id,
        tenant=workload.tenant,
        attempt=attempt,
        secret=secrets.token_hex(32),
        created_ms=now_ms,
    )
    created(session, cluster, now_ms=now_ms, reason=f"attempt {attempt} of {workload.workload_id}")
    session.flush()
    for placement in grant.placements:
        lease = Lease(
            lease_id=new_id("lease"),
            cluster_id=cluster.cluster_id,
            workload_id=workload.workload_id,
            tenant=workload.tenant,
            project=workload.project,
            node_id=placement.node_id,
            rank=placement.rank,
            resources=placement.resources.as_dict(),
            devices={str(index): share for index, share in placement.devices},
            epoch=attempt,
            granted_ms=now_ms,
        )
        created(session, lease, now_ms=now_ms, reason=f"rank {placement.rank} on {placement.node_id}")
    waited_seconds = max(now_ms - workload.queued_ms, 0) // 1000
    step(session, workload, WorkloadState.STARTING, now_ms=now_ms, reason=f"granted after waiting {waited_seconds} s")
    workload.attempt, workload.cluster_id, workload.explanation = attempt, cluster.cluster_id, None
    return cluster


def _intended(launch: Launch, now_ms: int) -> Node:
    offering = launch.offering
    return Node(
        node_id=new_id("node"),
        pool=offering.pool,
        provider=offering.provider,
        offering=offering.as_dict(),
        capacity_type=offering.capacity_type.value,
        usd_micros_per_hour=offering.usd_micros_per_hour,
        resources=offering.resources.as_dict(),
        simulated=offering.simulated,
        launched_for=launch.workload_id,
        receipt=dict(launch.receipt),
        created_ms=now_ms,
    )
