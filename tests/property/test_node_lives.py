"""Nodes under a cloud that fails in all its ways, on a virtual clock: nothing is lost, doubled or left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from polyray.core.lifecycle import NodeState
from polyray.reports.costs import costs_of_month
from polyray.reports.metering import month_of
from support.fleet import OFFERINGS, Fleet


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
