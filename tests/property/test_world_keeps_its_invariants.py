"""Any work, any faults, any restarts, in any order: the invariants hold throughout, and nothing is left at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from polyray.core.errors import PolyrayError
from support.crashes import Crash, Crashes
from support.invariants import QUIET_SECONDS, check, check_quiet, check_routes, is_quiet
from support.world import World

MOST_WORKLOADS = 5
KINDS = ("node", "broker", "cluster", "workload", "routes")
#: Index of a workload, or of a machine; one that is not there names none.
INDEX = st.integers(0, MOST_WORKLOADS - 1)


class AnyLife(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.world = World(Path(self.directory.name) / "state")
        self.crashes = Crashes(self.world)
        self.submitted: list[str] = []
        self.wait(1, 0.5)

    # Work.

    @rule(kind=st.sampled_from(["job", "job", "session", "service"]), workers=st.integers(1, 2), small=st.booleans())
    def submit(self, kind: str, workers: int, small: bool) -> None:
        if len(self.submitted) == MOST_WORKLOADS:
            return
        spec: dict[str, Any] = {"kind": kind, "name": f"{kind}-{len(self.submitted)}", "workers": workers}
        if kind == "service":
            spec["app"] = "serve:app"
        if small:
            spec["resources"] = {"cpu": 1, "memory": "1GiB"}
        self.submitted.append(self.world.submit(**spec))

    @rule(index=INDEX)
    def stop(self, index: int) -> None:
        if index < len(self.submitted):
            self.world.stop(self.submitted[index])

    @rule(code=st.sampled_from([0, 0, 3, -9]))
    def end_a_program(self, code: int) -> None:
        for lease_id in self._running()[:1]:
            self.world.fabric.end_driver(lease_id, code)

    # Time and the control plane.

    @rule(seconds=st.sampled_from([1, 2, 4, 12, 40]))
    def wait_a_while(self, seconds: int) -> None:
        self.wait(seconds, 0.5 if seconds <= 2 else 4)

    @rule(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), look=st.booleans())
    def let_some_run(self, kinds: list[str], look: bool) -> None:
        """Reconcilers run at their own pace, on a view that may be old."""
        self.world.clock.advance(0.3)
        if look:
            self._look()
        for kind in kinds:
            self._run(kind)
        check(self.world)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(after=st.integers(1, 12))
    def crash(self, after: int) -> None:
        self.crashes.after = after
        self.wait(2, 0.5)
        self.crashes.after = None

    @rule(seconds=st.sampled_from([-3600, -10, 10, 3600]))
    def step_the_wall_clock(self, seconds: int) -> None:
        self.world.clock.step_wall(seconds)

    # Faults.

    @rule(index=INDEX)
    def kill_a_slice(self, index: int) -> None:
        for spec, _ in self.world.fabric.started[index : index + 1]:
            self.world.fabric.exit_slice(spec.lease_id, "signal 9")

    @rule(index=INDEX)
    def end_a_lease(self, index: int) -> None:
        for lease_id in self._held()[index : index + 1]:
            self.world.fabric.end_lease(lease_id)

    @rule(index=st.integers(0, 2), how=st.sampled_from(["ends", "ends and is forgotten", "is cut off", "comes back"]))
    def a_machine(self, index: int, how: str) -> None:
        world = self.world
        for node_id in world.cloud.running[index : index + 1]:
            joined = any(node.node_id == node_id for node in world.fabric.nodes()) if world.fabric.available else False
            if how == "comes back" and joined:
                world.fabric.return_node(node_id)
            elif how == "is cut off" and joined:
                world.fabric.lose_node(node_id)
            elif how.startswith("ends") and world.fabric.available:
                world.cloud.end_instance(node_id, "spot reclaimed")
                if "forgotten" in how:
                    world.cloud.forget(node_id)

    @rule(which=st.sampled_from(["core", "cloud", "launch", "gateway", "health"]))
    def toggle(self, which: str) -> None:
        world = self.world
        match which:
            case "core":
                world.fabric.available = not world.fabric.available
            case "cloud":
                world.cloud.available = not world.cloud.available
            case "launch":
                world.cloud.launch_times_out = not world.cloud.launch_times_out
            case "gateway":
                world.gateway.down = not world.gateway.down
            case "health":
                world.healthy = not world.healthy

    @rule(fault=st.sampled_from(["insufficient", "over_quota", "never_joins"]), name=st.sampled_from(["rack", "cloud"]))
    def break_an_offering(self, fault: str, name: str) -> None:
        getattr(self.world.cloud, fault).symmetric_difference_update({name})

    @rule(grant=st.sampled_from([0, 2, 40]), start=st.sampled_from([0, 2]), release=st.integers(1, 3))
    def slow_the_core(self, grant: int, start: int, release: int) -> None:
        fabric = self.world.fabric
        fabric.grant_seconds, fabric.start_seconds, fabric.release_calls_needed = grant, start, release

    @rule(calls=st.integers(1, 3), lag=st.integers(0, 3))
    def slow_the_cloud(self, calls: int, lag: int) -> None:
        self.world.cloud.terminate_calls_needed, self.world.cloud.list_lag = calls, lag

    @rule()
    def fail_the_next_start(self) -> None:
        self.world.fabric.fail_next_start()

    # The end.

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._heal()
            self._quieten()
        finally:
            self.world.store.close()
            self.directory.cleanup()

    def _heal(self) -> None:
        world = self.world
        for faults in (world.cloud.insufficient, world.cloud.over_quota, world.cloud.never_joins):
            faults.clear()
        world.cloud.available, world.cloud.launch_times_out = True, False
        world.cloud.list_lag, world.cloud.terminate_calls_needed = 0, 1
        world.fabric.available, world.fabric.grant_seconds, world.fabric.start_seconds = True, 0, 0
        world.fabric.release_calls_needed = 1
        world.gateway.down, world.healthy = False, True

    def _quieten(self) -> None:
        """Let jobs end well, stop what would live on, and wait until nothing moves any more."""
        world = self.world
        for workload_id in self.submitted:
            if world.workload(workload_id).kind != "job":
                world.stop(workload_id)
        for _ in range(QUIET_SECONDS // 6):
            for lease_id in self._running():
                world.fabric.end_driver(lease_id, 0)
            self.wait(6, 3)
            if is_quiet(world):
                break
        self.wait(12, 3)
        check_quiet(world)

    def wait(self, seconds: float, step_seconds: float) -> None:
        for _ in range(round(seconds / step_seconds)):
            self.world.clock.advance(step_seconds)
            self._look()
            for kind in KINDS:
                self._run(kind)
            check(self.world)
            if not self.world.gateway.down:
                self._run("routes")
                check_routes(self.world)

    def _look(self) -> None:
        try:
            self.world.observer.refresh()
        except PolyrayError:
            pass

    def _run(self, kind: str) -> None:
        (reconciler,) = [each for each in self.world.reconcilers if each.kind == kind]
        try:
            for key in reconciler.pending():
                try:
                    reconciler.reconcile(key)
                except PolyrayError:
                    continue
        except Crash:
            self.world.restart()

    def _held(self) -> list[str]:
        return sorted(self.world.fabric.held)

    def _running(self) -> list[str]:
        """Return the leases under which a program runs."""
        fabric = self.world.fabric
        drivers = {lease_id: fabric.driver_of(lease_id) for lease_id in self._held()}
        return [key for key, driver in drivers.items() if driver and driver.driver_id in fabric.running_drivers]


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
