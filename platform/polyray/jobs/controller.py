"""Brings each workload to its end: observe, plan, apply."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.clock import Clock, Stopwatch
from polyray.core.faultpoints import outside
from polyray.core.layout import Layout
from polyray.core.lifecycle import WORKLOAD, ClusterState, WorkloadState
from polyray.core.reconcile import Done
from polyray.core.settings import Settings
from polyray.core.spec import Kind, WorkloadSpec
from polyray.jobs import run_files
from polyray.jobs.pauses import pause_ms
from polyray.jobs.plan import Action, EndCluster, Move, Observed, StartDriver, StopDriver, Wait, plan
from polyray.store.engine import Store
from polyray.store.steps import step
from polyray.store.tables import Cluster, Lease, Workload
from polyray.tenants import ports
from polyray.tenants.cluster_plan import Loss
from polyray.tenants.observer import Look, Observer
from polyray.tenants.slices import Address, DriverSpec, DriverStatus, Fabric, SliceState, SliceStatus

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
#: What runs in the head slice for each kind that has a program of its own.
RUNNERS = {Kind.JOB: "polyray.jobs.runner", Kind.SERVICE: "polyray.serving.application"}


_MOVING = {WorkloadState.STARTING.value, WorkloadState.STOPPING.value}
_ENDED = [state.value for state in WORKLOAD.terminal]
_LIVING = [state.value for state in ClusterState if state is not ClusterState.GONE]
#: What ends sooner is kept an eye on: longer than `pending` is asked for.
SOON_SECONDS = 15.0


@dataclass(frozen=True)
class _Calm:
    """A running workload for which nothing was to be done: how its cluster looked, and when its time is over."""

    look: Look
    #: Monotonic seconds; infinite without a limit.
    ends: float


@dataclass(frozen=True)
class _Rows:
    workload: Workload
    cluster: Cluster | None
    head: Lease | None
    #: Where the head listens; None before its first start and after its end.
    address: Address | None


class WorkloadController:
    """The reconciler of kind `workload`. `probe(address)` tells whether a service answers its health check."""

    kind = "workload"

    def __init__(
        self,
        *,
        store: Store,
        fabric: Fabric,
        observer: Observer,
        clock: Clock,
        settings: Settings,
        probe: Callable[[Address], bool],
        wake: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._fabric = fabric
        self._observer = observer
        self._clock = clock
        self._settings = settings
        self._layout = Layout(settings.store_root)
        self._probe = probe
        self._wake = wake
        self._running = Stopwatch(clock)
        #: Workload -> monotonic seconds at which its program was first asked to end.
        self._stop_asked: dict[str, float] = {}
        self._calm: dict[str, _Calm] = {}

    def pending(self) -> list[str]:
        """Return every workload that something may have to be done about, found by its rows, its cluster and the view.

        There are five: one that starts or stops; one that waits, runs or has ended but whose row or cluster says
        otherwise; a running one whose cluster looks different; one that nobody looked at yet; one whose time is over.
        """
        view, now = self._observer.latest(), self._clock.monotonic()
        with self._store.read() as session:
            moving = session.scalars(select(Workload.workload_id).where(Workload.state.in_(_MOVING))).all()
            stopped = select(Workload.workload_id).where(Workload.state == WorkloadState.QUEUED.value)
            unwanted = (
                select(Cluster.workload_id)
                .join(Workload, Workload.cluster_id == Cluster.cluster_id)
                .where(Cluster.state.in_(_LIVING), Cluster.stop_requested_ms.is_(None), Workload.state.in_(_ENDED))
            )
            waiting = session.scalars(stopped.where(Workload.stop_requested_ms.is_not(None))).all()
            running = session.execute(
                select(Workload.workload_id, Workload.cluster_id, Workload.stop_requested_ms)
                .add_columns(Cluster.state, Cluster.stop_requested_ms)
                .join(Cluster, Cluster.cluster_id == Workload.cluster_id)
                .where(Workload.state == WorkloadState.RUNNING.value)
            ).all()
            ended = session.scalars(unwanted).all()
        self._calm = {row[0]: self._calm[row[0]] for row in running if row[0] in self._calm}
        restless = []
        for workload_id, cluster_id, stop_ms, cluster_state, unwanted_ms in running:
            calm = self._calm.get(workload_id)
            asked = stop_ms is not None or unwanted_ms is not None or cluster_state != ClusterState.READY
            changed = calm is None or (view is not None and calm.look != view.look(cluster_id))
            if asked or changed or (calm is not None and calm.ends <= now + SOON_SECONDS):
                restless.append(workload_id)
        return [*moving, *waiting, *restless, *ended]

    def reconcile(self, key: str) -> Done:
        with self._store.read() as session:
            rows = self._read(session, key)
        if rows is None:
            return Done(forget=True)
        view = self._observer.latest()
        observed = self._observe(rows)
        actions = plan(observed)
        for action in actions:
            self._apply(action, rows)
        if any(isinstance(action, Move) for action in actions):
            return Done(again_seconds=0.0)
        if actions or rows.workload.state in _MOVING:
            return Done(again_seconds=POLL_SECONDS)
        if observed.state in WORKLOAD.terminal:
            self._stop_asked.pop(key, None)
        if observed.state is not WorkloadState.RUNNING or view is None:
            return Done(forget=True)
        left = -observed.overtime_ms / 1000 if observed.overtime_ms else math.inf
        self._calm[key] = _Calm(view.look(rows.workload.cluster_id), self._clock.monotonic() + left)
        # Its end is looked for by the clock as it draws near; anything else is found by `pending`, or wakes it.
        return Done(forget=True) if left > SOON_SECONDS else Done(again_seconds=left)

    def _read(self, session: Session, workload_id: str) -> _Rows | None:
        workload = session.get(Workload, workload_id)
        if workload is None:
            return None
        if workload.cluster_id is None:
            return _Rows(workload, None, None, None)
        cluster = session.get_one(Cluster, workload.cluster_id)
        head = session.scalar(select(Lease).where(Lease.cluster_id == cluster.cluster_id, Lease.rank == 0))
        block = ports.block_of(session, head.lease_id) if head else None
        address = None if block is None else ports.address_of(block, self._settings.slice_ports_start)
        return _Rows(workload, cluster, head, address)

    def _observe(self, rows: _Rows) -> Observed:
        workload, cluster = rows.workload, rows.cluster
        spec = WorkloadSpec.model_validate(workload.spec)
        status = self._head_status(rows)
        driver = _driver_of(status, workload)
        overtime = 0
        if (began_ms := _began_ms(workload, cluster)) is None:
            self._running.forget(workload.workload_id)
        elif spec.max_duration_ms is not None:
            # 0 is for what has no end.
            overtime = self._running.lasted_ms(workload.workload_id, began_ms) - spec.max_duration_ms or -1
        starting_service = spec.kind is Kind.SERVICE and workload.state == WorkloadState.STARTING
        return Observed(
            kind=spec.kind,
            state=WorkloadState(workload.state),
            stop_requested=workload.stop_requested_ms is not None,
            stop_asked_seconds=self._stop_asked_seconds(workload.workload_id),
            retry=spec.retry,
            retries=workload.retries,
            cluster=ClusterState(cluster.state) if cluster else None,
            cluster_unwanted=bool(cluster and cluster.stop_requested_ms),
            head_down=status is not None and status.state is SliceState.EXITED,
            head_unseen=status is None,
            cluster_reason=cluster.loss_reason if cluster else "",
            loss=Loss(cluster.loss) if cluster and cluster.loss else None,
            driver=driver,
            driver_asked=bool(cluster and cluster.driver_started_ms),
            healthy=bool(starting_service and driver and rows.address and self._answers(rows.address)),
            overtime_ms=overtime,
        )

    def _answers(self, address: Address) -> bool:
        with outside("service.probe"):
            return self._probe(address)

    def _stop_asked_seconds(self, workload_id: str) -> float:
        now = self._clock.monotonic()
        return now - self._stop_asked.get(workload_id, now)

    def _head_status(self, rows: _Rows) -> SliceStatus | None:
        if rows.head is None or rows.cluster is None or rows.cluster.state == ClusterState.GONE:
            return None
        return self._observer.view().slices.get(rows.head.lease_id)

    def _apply(self, action: Action, rows: _Rows) -> None:
        match action:
            case StartDriver():
                self._start_driver(rows)
            case StopDriver(grace):
                assert rows.head is not None
                self._stop_asked.setdefault(rows.workload.workload_id, self._clock.monotonic())
                with outside("fabric.stop_driver"):
                    self._fabric.stop_driver(rows.head.lease_id, _driver_id(rows.workload), grace)
            case Move():
                self._move(rows.workload, action)
            case EndCluster():
                self._end_cluster(rows.workload)
            case Wait():
                pass

    def _start_driver(self, rows: _Rows) -> None:
        workload, cluster = rows.workload, rows.cluster
        assert cluster is not None
        assert rows.head is not None
        assert rows.address is not None
        with self._store.write() as session:
            description = run_files.describe(session, workload, self._layout)
            row = session.get_one(Cluster, cluster.cluster_id)
            if row.driver_started_ms is None:
                row.driver_started_ms = self._clock.now_ms()
        run_dir = self._layout.run(workload.tenant, workload.workload_id)
        run_files.write(run_dir, description)
        driver = DriverSpec(
            driver_id=_driver_id(workload),
            argv=(sys.executable, "-m", RUNNERS[Kind(workload.kind)], str(run_dir)),
            cwd=str(run_dir),
            env={"RAY_ADDRESS": rows.address.gcs, "PYTHONUNBUFFERED": "1"},
            log_path=str(self._layout.driver_log(workload.tenant, workload.workload_id)),
        )
        with outside("fabric.start_driver"):
            self._fabric.start_driver(rows.head.lease_id, driver)

    def _move(self, seen: Workload, move: Move) -> None:
        """Step a workload, unless it is not where it was when that was decided."""
        with self._store.write() as session:
            workload = session.get_one(Workload, seen.workload_id)
            if (workload.state, workload.attempt) != (seen.state, seen.attempt):
                return
            now_ms = self._clock.now_ms()
            step(session, workload, move.state, now_ms=now_ms, reason=move.reason)
            if move.state is WorkloadState.RUNNING:
                workload.started_ms = now_ms
                workload.explanation = None
            if move.state is WorkloadState.QUEUED:
                workload.queued_ms = now_ms
                workload.retries += int(move.counts)
                workload.not_before_ms = now_ms + pause_ms(workload.workload_id, _lifetimes_ms(session, workload))
            if move.state in WORKLOAD.terminal:
                workload.ended_ms, workload.exit_code = now_ms, move.exit_code
                workload.live_name = workload.explanation = None
            if move.state in WORKLOAD.terminal or move.state is WorkloadState.QUEUED:
                self._ask_end(session, workload, now_ms)
        log.info("workload_moved", workload=workload.workload_id, state=move.state.value, reason=move.reason)
        self._wake_about(workload)

    def _end_cluster(self, seen: Workload) -> None:
        """End the cluster of the attempt that was seen: a later one is none of its business."""
        with self._store.write() as session:
            self._ask_end(session, seen, self._clock.now_ms())
        self._wake_about(seen)

    def _ask_end(self, session: Session, workload: Workload, now_ms: int) -> None:
        if workload.cluster_id is None:
            return
        cluster = session.get_one(Cluster, workload.cluster_id)
        if cluster.state != ClusterState.GONE and cluster.stop_requested_ms is None:
            cluster.stop_requested_ms = now_ms

    def _wake_about(self, workload: Workload) -> None:
        if workload.cluster_id is not None:
            self._wake("cluster", workload.cluster_id)
        self._wake("broker", "cycle")
        self._wake("routes", "all")


def _lifetimes_ms(session: Session, workload: Workload) -> list[int]:
    """Return how long its attempts lived, the latest last; those that a shutdown ended do not count."""
    ended = select(Cluster).where(
        Cluster.workload_id == workload.workload_id, Cluster.ended_ms.is_not(None), Cluster.loss != Loss.SHUTDOWN.value
    )
    return [(c.ended_ms or 0) - c.created_ms for c in session.scalars(ended.order_by(Cluster.attempt))]


def _began_ms(workload: Workload, cluster: Cluster | None) -> int | None:
    """Return since when it runs, or its program does: a service that is never healthy must not start for ever."""
    match workload.state:
        case WorkloadState.RUNNING:
            return workload.started_ms
        case WorkloadState.STARTING:
            return cluster.driver_started_ms if cluster else None
    return None


def _driver_of(status: SliceStatus | None, workload: Workload) -> DriverStatus | None:
    """Return what the head says of this attempt's program; of an older one it says nothing."""
    driver = status.driver if status else None
    return driver if driver and driver.driver_id == _driver_id(workload) else None


def _driver_id(workload: Workload) -> str:
    return f"{workload.workload_id}.{workload.attempt}"
