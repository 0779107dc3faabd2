"""Nodes under a cloud that fails in all its ways, on a virtual clock: nothing is lost, doubled or left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select

from polyray.autoscaler.controller import NodeController
from polyray.autoscaler.cooling import Cooling
from polyray.autoscaler.offerings import offerings_of
from polyray.autoscaler.provider import Instance
from polyray.broker.snapshot import Offering
from polyray.core.clock import VirtualClock
from polyray.core.errors import PolyrayError, Unavailable
from polyray.core.lifecycle import NodeState, WorkloadState
from polyray.core.platform_file import PlatformFile
from polyray.core.spec import CapacityType, load_workload
from polyray.jobs.scheduling import Scheduler
from polyray.reports.costs import costs_of_month
from polyray.reports.metering import month_of
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.steps import step
from polyray.store.tables import Node, Quota, Workload
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


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path)
    fleet.settle(3, plan=False)
    return fleet


def test_a_job_that_needs_a_cloud_node_gets_one_and_it_goes_when_idle(fleet: Fleet) -> None:
    job = fleet.submit()
    fleet.settle(30)
    assert fleet.state(job) == "starting"
    assert [node.pool for node in fleet.rows(NodeState.READY)] == ["rack", "cheap"]
    idle = Fleet.rows(fleet, pool="cheap")[0]
    assert idle.idle_since_ms is None
    assert idle.ready_ms is not None


def test_nodes_that_never_join_are_ended_in_time_and_launches_stay_few(fleet: Fleet) -> None:
    fleet.cloud.never_joins |= {"cheap", "dear"}
    fleet.submit()
    fleet.settle(600, step_seconds=3)
    launched = [node for node in fleet.rows() if node.capacity_type != CapacityType.RESERVED]
    assert 2 <= len(launched) <= 12
    assert len(fleet.cloud.running) <= 1 + 2
    for node in launched[:-1]:
        assert node.state == NodeState.TERMINATED
        assert "did not join" in node.state_reason
        assert node.billed_from_ms is not None
        assert node.billed_to_ms is not None
        assert node.billed_to_ms - node.billed_from_ms <= 63_000


def test_an_offering_without_capacity_rests_and_the_next_cycle_uses_another(fleet: Fleet) -> None:
    fleet.cloud.insufficient.add("cheap")
    job = fleet.submit()
    fleet.settle(30)
    assert fleet.state(job) == "starting"
    assert [(node.pool, node.state) for node in fleet.rows() if node.pool != "rack"] == [
        ("cheap", "terminated"),
        ("dear", "ready"),
    ]
    assert "no cheap now" in fleet.rows(pool="cheap")[0].state_reason
    assert sum(verb == "launch" for verb, _ in fleet.cloud.calls) == 3


def test_a_machine_that_is_gone_already_counts_as_terminated(fleet: Fleet) -> None:
    job = fleet.submit()
    fleet.settle(5)
    (node,) = fleet.rows(pool="cheap")
    fleet.cloud.end_instance(node.node_id)
    fleet.cloud.forget(node.node_id)
    fleet.stop(job)
    fleet.settle(3)
    (node,) = fleet.rows(pool="cheap")
    assert node.state == NodeState.TERMINATED
    assert node.billed_to_ms is not None


def test_one_node_that_cannot_be_ended_keeps_no_other_from_ending(fleet: Fleet) -> None:
    jobs = [fleet.submit() for _ in range(2)]
    fleet.settle(5)
    first, second = fleet.rows(pool="cheap")
    fleet.cloud.terminate_calls_needed = 10**6
    fleet.stop(jobs[0])
    fleet.settle(5)
    fleet.cloud.terminate_calls_needed = 1
    end = fleet.cloud.terminate

    def end_all_but_the_first(intent_id: str) -> Instance:
        if intent_id == first.node_id:
            raise Unavailable("the provider does not answer")
        return end(intent_id)

    fleet.cloud.terminate = end_all_but_the_first  # type: ignore[method-assign]
    fleet.stop(jobs[1])
    fleet.settle(5)
    assert [node.state for node in fleet.rows(pool="cheap")] == ["terminating", "terminated"]
    assert fleet.rows(NodeState.READY, pool="rack")
    assert second.node_id not in fleet.cloud.running


def test_a_job_stopped_while_its_node_boots_leaves_no_machine(fleet: Fleet) -> None:
    for seconds in range(0, 24, 3):
        job = fleet.submit()
        fleet.settle(seconds)
        fleet.stop(job)
        fleet.settle(40)
        assert [node.pool for node in fleet.rows(NodeState.READY)] == ["rack"] or fleet.state(job) == "starting"


def test_a_launch_that_timed_out_after_success_makes_one_machine(fleet: Fleet) -> None:
    fleet.cloud.launch_times_out = True
    fleet.submit()
    fleet.settle(3)
    fleet.cloud.launch_times_out = False
    fleet.settle(30)
    assert len(fleet.cloud.running) == 2
    assert [node.state for node in fleet.rows(pool="cheap")] == ["ready"]


def test_a_machine_that_no_row_knows_is_ended_within_five_minutes(fleet: Fleet) -> None:
    fleet.cloud.make_unknown_instance("nod-unknown", CLOUD)
    fleet.settle(3)
    assert "nod-unknown" not in fleet.cloud.running


def test_a_lost_reserved_node_is_replaced_by_one_that_takes_its_place(fleet: Fleet) -> None:
    (rack,) = fleet.rows(NodeState.READY)
    fleet.cloud.end_instance(rack.node_id, "power supply")
    fleet.settle(10)
    old, new = fleet.rows(pool="rack")
    assert (old.state, new.state) == ("terminated", "ready")


def test_a_dead_node_whose_machine_lives_is_lost_after_thirty_seconds(fleet: Fleet) -> None:
    (rack,) = fleet.rows(NodeState.READY)
    fleet.fabric.lose_node(rack.node_id)
    fleet.settle(28)
    assert fleet.rows(pool="rack")[0].state == NodeState.READY
    fleet.settle(6)
    assert fleet.rows(pool="rack")[0].state == NodeState.TERMINATED
    assert rack.node_id not in fleet.cloud.running


def test_an_outage_of_the_core_loses_nothing(fleet: Fleet) -> None:
    fleet.fabric.available = False
    fleet.settle(300, step_seconds=5)
    fleet.fabric.available = True
    fleet.settle(2)
    assert [node.state for node in fleet.rows()] == ["ready"]


def test_a_pool_follows_its_count_up_and_down(fleet: Fleet) -> None:
    rack = fleet.platform.pools["rack"]
    for count in (3, 1, 0):
        fleet.platform = fleet.platform.model_copy(
            update={"pools": {**fleet.platform.pools, "rack": rack.model_copy(update={"count": count})}}
        )
        fleet.cloud._offerings = offerings_of(fleet.platform)
        fleet.settle(15)
        assert len(fleet.rows(NodeState.READY)) == count
    assert fleet.cloud.running == ()


def test_a_collecting_gang_keeps_its_nodes_though_they_idle_longer_than_allowed(fleet: Fleet) -> None:
    """Idle after 5 s, boot of 20 s, one of three nodes late."""
    job = fleet.submit(workers=3)
    fleet.settle(2)
    late = fleet.rows(pool="cheap")[-1]
    fleet.cloud.never_joins.add(late.node_id)
    fleet.settle(40)
    assert fleet.state(job) == "queued"
    assert len(fleet.rows(NodeState.READY, pool="cheap")) == 2
    fleet.cloud.never_joins.clear()
    fleet.settle(10)
    assert fleet.state(job) == "starting"
    assert not [node for node in fleet.rows() if node.state == NodeState.TERMINATED]


def test_shutting_down_leaves_no_machine_and_starts_none(fleet: Fleet) -> None:
    fleet.submit()
    fleet.settle(5)
    fleet.nodes.shut_down()
    assert not fleet.nodes.all_gone()
    fleet.settle(20, plan=False)
    assert fleet.nodes.all_gone()
    assert fleet.cloud.running == ()


class NodeLives(RuleBasedStateMachine):
    """Any faults in any order; afterwards the cloud heals and everything is right again."""

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.fleet = Fleet(Path(self.directory.name))
        self.fleet.settle(3)

    @rule(workers=st.integers(1, 3))
    def submit(self, workers: int) -> None:
        if self.fleet.submitted < 3:
            self.fleet.submit(workers)

    @rule(number=st.integers(1, 3))
    def stop(self, number: int) -> None:
        if number <= self.fleet.submitted:
            self.fleet.stop(f"job-{number}")

    @rule(seconds=st.sampled_from([1, 2, 5, 15, 40]))
    def wait(self, seconds: int) -> None:
        self.fleet.settle(seconds, step_seconds=5 if seconds > 5 else 1)

    @rule()
    def restart(self) -> None:
        self.fleet.restart()

    @rule(name=st.sampled_from(["cheap", "dear"]), fault=st.sampled_from(["insufficient", "over_quota", "never_joins"]))
    def break_offering(self, name: str, fault: str) -> None:
        getattr(self.fleet.cloud, fault).symmetric_difference_update({name})

    @rule(calls=st.integers(1, 4), lag=st.integers(0, 3))
    def be_slow(self, calls: int, lag: int) -> None:
        self.fleet.cloud.terminate_calls_needed, self.fleet.cloud.list_lag = calls, lag

    @rule(which=st.sampled_from(["available", "launch_times_out"]))
    def toggle_provider(self, which: str) -> None:
        setattr(self.fleet.cloud, which, not getattr(self.fleet.cloud, which))

    @rule()
    def toggle_core(self) -> None:
        self.fleet.fabric.available = not self.fleet.fabric.available

    @rule(index=st.integers(0, 3), forget=st.booleans())
    def end_a_machine(self, index: int, forget: bool) -> None:
        running = self.fleet.cloud.running
        if index < len(running):
            self.fleet.cloud.end_instance(running[index])
            if forget:
                self.fleet.cloud.forget(running[index])

    @invariant()
    def no_more_machines_than_the_offerings_allow(self) -> None:
        if not hasattr(self, "fleet"):
            return
        living = [node for node in self.fleet.rows() if node.state != NodeState.TERMINATED]
        for offering in OFFERINGS:
            assert sum(node.pool == offering.pool for node in living) <= offering.max_nodes

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        try:
            self.heal_and_check()
        finally:
            self.directory.cleanup()

    def heal_and_check(self) -> None:
        fleet, cloud = self.fleet, self.fleet.cloud
        for faults in (cloud.insufficient, cloud.over_quota, cloud.never_joins):
            faults.clear()
        cloud.available, cloud.launch_times_out, cloud.list_lag, cloud.terminate_calls_needed = True, False, 0, 1
        fleet.fabric.available = True
        for number in range(1, fleet.submitted + 1):
            fleet.stop(f"job-{number}")
        fleet.nodes.reconcile("orphans/local")
        fleet.settle(130, step_seconds=5)
        known = {node.node_id for node in fleet.rows() if node.state != NodeState.TERMINATED}
        assert set(cloud.running) == known, "every machine has a row, and every living row its machine"
        with fleet.store.read() as session:
            costs = costs_of_month(session, month_of(fleet.clock.now_ms()), fleet.clock.now_ms())
        billed = [node for node in fleet.rows() if node.billed_from_ms is not None]
        assert {line.node.node_id for line in costs.lines} <= {node.node_id for node in billed}
        for node in billed:
            assert node.billed_from_ms is not None
            end = fleet.clock.now_ms() if node.billed_to_ms is None else node.billed_to_ms
            assert end >= node.billed_from_ms
            assert (node.billed_to_ms is not None) == (node.node_id not in known)


TestNodeLives = NodeLives.TestCase
TestNodeLives.settings = settings(max_examples=10, stateful_step_count=15, deadline=None)
