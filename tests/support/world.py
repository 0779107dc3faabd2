"""A whole control plane on a virtual clock: real store, broker and reconcilers, a core and a cloud in memory.

Nothing runs by itself: `settle` moves the clock and runs each reconciler on each of its keys, in order,
so that a test reads as a story and takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import select

from polyray.autoscaler.controller import NodeController
from polyray.autoscaler.cooling import Cooling
from polyray.autoscaler.offerings import offerings_of
from polyray.autoscaler.provider import NodeProvider
from polyray.core.clock import Clock, VirtualClock
from polyray.core.errors import PolyrayError
from polyray.core.ids import new_id
from polyray.core.lifecycle import ClusterState, LeaseState
from polyray.core.platform_file import PlatformFile
from polyray.core.reconcile import Reconciler
from polyray.core.settings import Settings
from polyray.core.spec import Kind, parse_workload
from polyray.jobs.controller import WorkloadController
from polyray.jobs.scheduling import Scheduler
from polyray.serving.controller import RouteController
from polyray.serving.gateway import Gateway
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.steps import created
from polyray.store.tables import Cluster, Event, Lease, Node, Workload
from polyray.tenants.controller import ClusterController
from polyray.tenants.definitions import apply_definitions
from polyray.tenants.observer import Observer
from polyray.tenants.slices import Address, Fabric
from support.fabric import FakeFabric
from support.gateway import FakeGateway
from support.providers import FakeProvider

PLATFORM = {
    "tenants": {
        "vision": {"quota": {"cpu": 6, "memory": "16GiB"}, "budget_usd_per_month": 20},
        "speech": {"quota": {"cpu": 2, "memory": "4GiB"}, "budget_usd_per_month": 0},
    },
    "pools": {
        "rack": {
            "provider": "local",
            "capacity_type": "reserved",
            "count": 1,
            "resources": {"cpu": 2, "memory": "4GiB"},
            "usd_per_hour": "0.40",
        },
        "cloud": {
            "provider": "local",
            "capacity_type": "on_demand",
            "resources": {"cpu": 1, "memory": "2GiB"},
            "usd_per_hour": "1.20",
            "boot_seconds": 3,
            "max_nodes": 2,
        },
    },
    "idle_seconds": 10,
}


def reconcilers_of(
    *,
    store: Store,
    fabric: Fabric,
    cloud: NodeProvider,
    gateway: Gateway,
    observer: Observer,
    clock: Clock,
    settings: Settings,
    platform: Callable[[], PlatformFile],
    probe: Callable[[Address], bool],
    wake: Callable[[str, str], None],
) -> tuple[Reconciler, ...]:
    """Return the reconcilers of one control plane, put together as its process does."""
    cooling = Cooling(clock)
    nodes = NodeController(
        store=store,
        providers={cloud.name: cloud},
        fabric=fabric,
        clock=clock,
        cooling=cooling,
        platform=platform,
        wake=wake,
    )
    scheduler = Scheduler(
        store=store,
        clock=clock,
        offerings=cloud.offerings,
        cooling=cooling.offerings,
        idle_seconds=lambda: platform().idle_seconds,
        wake=wake,
    )
    common: dict[str, Any] = {
        "store": store,
        "fabric": fabric,
        "observer": observer,
        "clock": clock,
        "settings": settings,
        "wake": wake,
    }
    clusters = ClusterController(**common)
    workloads = WorkloadController(**common, probe=probe)
    routes = RouteController(store=store, gateway=gateway, clock=clock, settings=settings, signing_keys=tuple)
    return nodes, scheduler, clusters, workloads, routes


class World:
    def __init__(
        self,
        directory: Path,
        platform: dict[str, Any] | None = None,
        *,
        database_url: str = "",
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.settings = Settings(state_dir=directory, database_url=database_url)
        self.platform = PlatformFile.model_validate(platform or PLATFORM)
        self.store = Store(self.settings.store_url)
        migrate(self.store)
        apply_definitions(self.store, self.platform, now_ms=self.clock.now_ms())
        self.fabric = FakeFabric(self.clock)
        self.cloud = FakeProvider(
            offerings_of(self.platform),
            clock=self.clock,
            on_join=lambda node_id, offering: self.fabric.add_node(
                node_id, offering.resources["cpu"], 0, offering.resources["memory"]
            ),
            on_end=self._node_ends,
        )
        self.gateway = FakeGateway()
        self.healthy = True
        self.restart()

    def restart(self) -> None:
        """Forget everything that a process holds in memory, as a kill -9 of the control plane does."""
        self.observer = Observer(self.fabric, self.clock, lambda cluster_id: None)
        self.reconcilers = reconcilers_of(
            store=self.store,
            fabric=self.fabric,
            cloud=self.cloud,
            gateway=self.gateway,
            observer=self.observer,
            clock=self.clock,
            settings=self.settings,
            platform=lambda: self.platform,
            probe=self.probe,
            # Every key is looked at in every round anyway.
            wake=lambda kind, key: None,
        )

    # What happens.

    def settle(self, seconds: float = 30.0, step_seconds: float = 0.5) -> None:
        """Let so much time pass, everything being looked at every half second."""
        for _ in range(round(seconds / step_seconds)):
            self.clock.advance(step_seconds)
            self.round()

    def round(self) -> None:
        """Run each reconciler once on each of its keys. A reconciler that fails is tried again next round."""
        try:
            self.observer.refresh()
        except PolyrayError:
            pass
        for reconciler in self.reconcilers:
            for key in reconciler.pending():
                try:
                    reconciler.reconcile(key)
                except PolyrayError:
                    continue

    def submit(self, tenant: str = "vision", **spec: Any) -> str:
        """Put a workload into the queue as the API does and return its id."""
        given = {"kind": "job", "name": "train", **spec}
        if given["kind"] == "job":
            given.setdefault("run", "python train.py")
        parsed = parse_workload(given)
        workload_id = new_id(parsed.kind.value)
        with self.store.write() as session:
            row = Workload(
                workload_id=workload_id,
                kind=parsed.kind.value,
                tenant=tenant,
                project=parsed.project,
                name=parsed.name,
                live_name=None if parsed.kind is Kind.JOB else parsed.name,
                submitted_by="ada",
                spec=parsed.model_dump(mode="json"),
                created_ms=self.clock.now_ms(),
                queued_ms=self.clock.now_ms(),
            )
            created(session, row, now_ms=self.clock.now_ms(), reason="submitted")
        return workload_id

    def stop(self, workload_id: str) -> None:
        with self.store.write() as session:
            session.get_one(Workload, workload_id).stop_requested_ms = self.clock.now_ms()

    def end_program(self, workload_id: str, exit_code: int = 0) -> None:
        self.fabric.end_driver(self.lease(workload_id, 0).lease_id, exit_code)

    def kill_slice(self, workload_id: str, rank: int) -> None:
        self.fabric.exit_slice(self.lease(workload_id, rank).lease_id, "signal 9")

    # What is there.

    def workload(self, workload_id: str) -> Workload:
        with self.store.read() as session:
            return session.get_one(Workload, workload_id)

    def cluster(self, workload_id: str) -> Cluster:
        with self.store.read() as session:
            return session.get_one(Cluster, session.get_one(Workload, workload_id).cluster_id)

    def lease(self, workload_id: str, rank: int) -> Lease:
        with self.store.read() as session:
            cluster_id = session.get_one(Workload, workload_id).cluster_id
            return session.scalars(select(Lease).where(Lease.cluster_id == cluster_id, Lease.rank == rank)).one()

    def live_leases(self) -> list[Lease]:
        with self.store.read() as session:
            return list(session.scalars(select(Lease).where(Lease.state != LeaseState.RELEASED.value)))

    def nodes(self, *states: str) -> list[Node]:
        with self.store.read() as session:
            found = session.scalars(select(Node).order_by(Node.created_ms)).all()
            return [node for node in found if not states or node.state in states]

    def story(self, entity_id: str) -> list[tuple[str, str]]:
        """Return the (from, to) steps of an entity, in order."""
        with self.store.read() as session:
            events = session.scalars(select(Event).where(Event.entity_id == entity_id).order_by(Event.event_id))
            return [(event.start, event.finish) for event in events if event.finish]

    def clusters_left(self) -> list[str]:
        with self.store.read() as session:
            return list(session.scalars(select(Cluster.cluster_id).where(Cluster.state != ClusterState.GONE.value)))

    def _node_ends(self, node_id: str) -> None:
        if self.fabric.alive(node_id):
            self.fabric.lose_node(node_id)

    def probe(self, address: Address) -> bool:
        return self.healthy
