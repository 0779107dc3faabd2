"""Store, broker and node reconciler over a core and a cloud in memory, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select

from polyray.autoscaler.controller import NodeController
from polyray.autoscaler.cooling import Cooling
from polyray.autoscaler.offerings import offerings_of
from polyray.broker.snapshot import Offering
from polyray.core.clock import VirtualClock
from polyray.core.errors import PolyrayError
from polyray.core.lifecycle import LeaseState, NodeState, WorkloadState
from polyray.core.platform_file import PlatformFile
from polyray.core.spec import load_workload
from polyray.jobs.scheduling import Scheduler
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.steps import step
from polyray.store.tables import Lease, Node, Quota, Workload
from support.fabric import FakeFabric
from support.providers import FakeProvider
from support.rows import add_tenant, add_workload

PLATFORM = PlatformFile.model_validate(
    {
        "pools": {
            "rack": {
                "provider": "local",
                "capacity_type": "reserved",
                "count": 1,
                "resources": {"cpu": 1, "memory": "2GiB"},
                "usd_per_hour": "0.40",
            },
            "cheap": {
                "provider": "local",
                "capacity_type": "on_demand",
                "max_nodes": 3,
                "boot_seconds": 20,
                "join_limit_seconds": 60,
                "resources": {"cpu": 2, "memory": "4GiB"},
                "usd_per_hour": "1.00",
            },
            "dear": {
                "provider": "local",
                "capacity_type": "on_demand",
                "max_nodes": 3,
                "boot_seconds": 20,
                "join_limit_seconds": 60,
                "resources": {"cpu": 2, "memory": "4GiB"},
                "usd_per_hour": "3.00",
            },
        },
        "idle_seconds": 5,
    }
)
OFFERINGS = offerings_of(PLATFORM)
CLOUD = next(each for each in OFFERINGS if each.name == "cheap")


class Fleet:
    """Store, broker and node controller over a core and a cloud in memory. Nothing runs by itself."""

    def __init__(self, directory: Path, platform: PlatformFile = PLATFORM) -> None:
        self.clock = VirtualClock()
        self.platform = platform
        self.store = Store(f"sqlite:///{directory / 'polyray.db'}")
        migrate(self.store)
        with self.store.write() as session:
            add_tenant(session)
            for flavor, nominal in (("cpu", 100_000), ("memory", 2**40)):
                session.add(Quota(tenant="vision", flavor=flavor, nominal=nominal, borrowing_limit=0))
        self.fabric = FakeFabric(self.clock)
        self.cloud = FakeProvider(
            offerings_of(platform), clock=self.clock, on_join=self._joins, on_end=self.fabric.lose_node
        )
        self.submitted = 0
        self.restart()

    def restart(self) -> None:
        self.cooling = Cooling(self.clock)
        self.nodes = NodeController(
            store=self.store,
            clock=self.clock,
            fabric=self.fabric,
            providers={"local": self.cloud},
            platform=lambda: self.platform,
            cooling=self.cooling,
            wake=lambda kind, key: None,
        )
        self.broker = Scheduler(
            store=self.store,
            clock=self.clock,
            offerings=lambda: offerings_of(self.platform),
            cooling=self.cooling.offerings,
            idle_seconds=lambda: self.platform.idle_seconds,
            wake=lambda kind, key: None,
        )

    def submit(self, workers: int = 1, resources: str = "{cpu: 2, memory: 2GiB}") -> str:
        spec = load_workload(f"kind: job\nname: a\nrun: x\nworkers: {workers}\nresources: {resources}\n")
        self.submitted += 1
        job, now_ms = f"job-{self.submitted}", self.clock.now_ms()
        with self.store.write() as session:
            add_workload(session, job, spec=spec.model_dump(mode="json"), queued_ms=now_ms, created_ms=now_ms)
        return job

    def stop(self, job: str) -> None:
        with self.store.write() as session:
            row = session.get_one(Workload, job)
            if row.state == WorkloadState.QUEUED:
                row.ended_ms = self.clock.now_ms()
                step(session, row, WorkloadState.STOPPED, now_ms=self.clock.now_ms())

    def settle(self, seconds: int, *, plan: bool = True, step_seconds: int = 1) -> None:
        for _ in range(0, seconds, step_seconds):
            self.clock.advance(step_seconds)
            self.cloud.tick()
            self.round(plan=plan)

    def round(self, *, plan: bool = True) -> None:
        for key in self.nodes.pending():
            _tried(lambda key=key: self.nodes.reconcile(key))  # type: ignore[misc]
        if plan:
            _tried(lambda: self.broker.reconcile("cycle"))
        self._end_leases_on_lost_nodes()

    def _end_leases_on_lost_nodes(self) -> None:
        """Do what the clusters' reconciler does, which is not here."""
        with self.store.write() as session:
            lost = select(Node.node_id).where(Node.state == NodeState.LOST)
            for lease in session.scalars(
                select(Lease).where(Lease.node_id.in_(lost), Lease.state != LeaseState.RELEASED)
            ):
                for state in (LeaseState.RELEASING, LeaseState.RELEASED):
                    step(session, lease, state, now_ms=self.clock.now_ms())
                lease.released_ms = self.clock.now_ms()

    def rows(self, *states: NodeState, pool: str | None = None) -> list[Node]:
        with self.store.read() as session:
            found = session.scalars(select(Node).order_by(Node.created_ms, Node.node_id)).all()
        return [node for node in found if (not states or node.state in states) and pool in {None, node.pool}]

    def state(self, job: str) -> str:
        with self.store.read() as session:
            return session.get_one(Workload, job).state

    def _joins(self, node_id: str, offering: Offering) -> None:
        self.fabric.add_node(node_id, offering.resources["cpu"], 0, offering.resources["memory"])


def _tried(call: Callable[[], object]) -> None:
    """Run as the loop does: a failure is tried again in the next round."""
    try:
        call()
    except PolyrayError:
        pass
