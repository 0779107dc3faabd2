"""What happens to a world from outside: work that comes, programs that end, and faults of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from polyray.core.lifecycle import WORKLOAD
from polyray.core.platform_file import PlatformFile
from polyray.store.tables import Workload
from support.simulation.clients import Clients
from support.simulation.weather import Weather
from support.world import World

PLATFORM: dict[str, Any] = {
    "tenants": {
        "vision": {"quota": {"cpu": 6, "memory": "16GiB"}, "budget_usd_per_month": 20},
        "speech": {"quota": {"cpu": 3, "memory": "6GiB"}, "budget_usd_per_month": 0},
        "robots": {"quota": {"cpu": 4, "memory": "8GiB"}, "budget_usd_per_month": 1},
    },
    "pools": {
        "rack": {
            "provider": "local",
            "capacity_type": "reserved",
            "count": 2,
            "resources": {"cpu": 2, "memory": "4GiB"},
            "usd_per_hour": "0.40",
            "join_limit_seconds": 20,
        },
        "cloud": {
            "provider": "local",
            "capacity_type": "on_demand",
            "resources": {"cpu": 1, "memory": "2GiB"},
            "usd_per_hour": "1.20",
            "boot_seconds": 3,
            "join_limit_seconds": 20,
            "max_nodes": 3,
        },
        "cheap": {
            "provider": "local",
            "capacity_type": "spot",
            "resources": {"cpu": 2, "memory": "4GiB"},
            "usd_per_hour": "0.50",
            "boot_seconds": 1,
            "join_limit_seconds": 20,
            "max_nodes": 2,
        },
    },
    "idle_seconds": 10,
}
MOST_LIVE = 8
MOST_EVER = 60


class Outside:
    """Events of one world. Each is told as a line, or is None where it could not happen."""

    def __init__(self, world: World, clients: Clients, rng: random.Random, weather: Weather) -> None:
        self._world, self._clients, self._rng = world, clients, rng
        self._weather = weather
        self._keys = 0
        #: What ends, and when (monotonic seconds).
        self._outages: list[tuple[float, str, Callable[[], None]]] = []
        events: list[tuple[str, int, Callable[[], str | None]]] = [
            ("", 10, self._submit),
            ("", 1, self._stop),
            ("", 8, self._end_a_program),
            ("", 1, self._kill_a_worker),
            ("", 1, self._apply_the_platform),
            ("clock", 1, self._step_the_clock),
            ("core", 1, lambda: self._outage(world.fabric, "available", False)),
            ("cloud", 1, lambda: self._outage(world.cloud, "available", False)),
            ("cloud", 1, lambda: self._outage(world.cloud, "launch_times_out", True)),
            ("gateway", 1, lambda: self._outage(world.gateway, "down", True)),
            ("health", 1, lambda: self._outage(world, "healthy", False)),
            ("slices", 2, self._exit_a_slice),
            ("slices", 1, self._end_a_lease),
            ("slices", 1, self._fail_the_next_start),
            ("machines", 2, self._a_machine),
            ("capacity", 2, self._an_offering),
            ("slow", 1, self._slow),
        ]
        open_events = [(weight, event) for kind, weight, event in events if not kind or kind in weather.kinds]
        self._weights, self._events = zip(*open_events, strict=True)

    def happen(self) -> str | None:
        (event,) = self._rng.choices(self._events, self._weights)
        told: str | None = event()
        return told

    def pass_outages(self) -> list[str]:
        """End the outages whose time is over."""
        now = self._world.clock.monotonic()
        over = [each for each in self._outages if each[0] <= now]
        self._outages = [each for each in self._outages if each[0] > now]
        for _, _, end in over:
            end()
        return [f"{name} ends" for _, name, _ in over]

    def next_end(self) -> float:
        return min((at for at, _, _ in self._outages), default=float("inf"))

    def heal(self) -> None:
        """Nothing outside is at fault any more, and everything is as quick as it can be."""
        for _, _, end in self._outages:
            end()
        self._outages.clear()

    def quieten(self) -> None:
        """Let jobs end well, and have stopped what would live on."""
        for lease_id in self._running():
            self._world.fabric.end_driver(lease_id, 0)
        for workload in self._live():
            if workload.kind != "job" and workload.workload_id not in self._clients.stopped:
                self._clients.stop(workload.kind, workload.tenant, workload.workload_id)

    # Work.

    def _submit(self) -> str | None:
        rng = self._rng
        if self._keys >= MOST_EVER or len(self._live()) >= MOST_LIVE:
            return None
        kind = rng.choice(["job", "job", "job", "session", "service"])
        content: dict[str, Any] = {
            "kind": kind,
            "name": f"{kind}-{rng.randrange(3)}",
            "workers": rng.choice([1, 1, 1, 2, 2, 3]),
        }
        content["resources"] = {"cpu": rng.choice([1, 1, 1, 2]), "memory": "1GiB"}
        content["capacity"] = rng.choice([["reserved"], ["reserved", "on_demand"], ["reserved", "spot", "on_demand"]])
        content["priority"] = rng.choice(["low", "normal", "high"])
        content["retry"] = {"limit": rng.choice([0, 1, 3, 3])}
        if kind == "service":
            content["app"] = "serve:app"
        if kind == "job":
            content["run"] = "python train.py"
            if rng.random() < 0.1:
                content["max_duration"] = f"{rng.choice([2, 10, 60])}s"
        if rng.random() < 0.1:
            content["max_wait"] = f"{rng.choice([5, 30])}s"
        if rng.random() < 0.05:
            content["resources"] = {"cpu": 64, "memory": "1GiB"}
        tenant = rng.choice(["vision", "vision", "speech", "robots"])
        self._keys += 1
        key = f"key-{self._keys}"
        for _ in range(rng.choice([1, 1, 1, 1, 2])):
            self._clients.submit(key, tenant, content)
        return f"{tenant} submits {key}: a {kind} of {content['workers']} on {' '.join(content['capacity'])}"

    def _stop(self) -> str | None:
        if not (live := self._live()):
            return None
        workload = self._rng.choice(live)
        self._clients.stop(workload.kind, workload.tenant, workload.workload_id)
        return f"stop {workload.workload_id}"

    def _end_a_program(self) -> str | None:
        if not (running := self._running()):
            return None
        lease_id, code = self._rng.choice(running), self._rng.choice([0, 0, 0, 3, -9])
        self._world.fabric.end_driver(lease_id, code)
        return f"the program under {lease_id} ends with {code}"

    def _kill_a_worker(self) -> str | None:
        if not (jobs := [workload for workload in self._live() if workload.kind == "job"]):
            return None
        workload = self._rng.choice(jobs)
        self._clients.kill_worker(workload.tenant, workload.workload_id, self._rng.randrange(3))
        return f"kill a worker of {workload.workload_id}"

    def _apply_the_platform(self) -> str:
        """A budget changes. A quota does not: a smaller one ends nothing that is above it."""
        budget = self._rng.choice([0, 1, 20])
        tenants = {**PLATFORM["tenants"], "robots": {**PLATFORM["tenants"]["robots"], "budget_usd_per_month": budget}}
        self._clients.set_budget("robots", PlatformFile.model_validate({**PLATFORM, "tenants": tenants}))
        return f"a budget of {budget} for robots"

    # Faults.

    def _step_the_clock(self) -> str:
        seconds = self._rng.choice([-3600, -10, 10, 3600])
        self._world.clock.step_wall(seconds)
        return f"the wall clock steps by {seconds} s"

    def _outage(self, part: Any, attribute: str, value: object) -> str | None:
        before, name = getattr(part, attribute), f"{type(part).__name__}.{attribute}"
        # One at a time: two that overlap would leave behind what the second found.
        if any(name == outage for _, outage, _ in self._outages):
            return None
        setattr(part, attribute, value)
        self._until_later(name, lambda: setattr(part, attribute, before))
        return f"{name} is {value}"

    def _until_later(self, name: str, end: Callable[[], None]) -> None:
        seconds = self._rng.choice([0.5, 3, 12, 40])
        self._outages.append((self._world.clock.monotonic() + seconds, name, end))

    def _exit_a_slice(self) -> str | None:
        if not (started := self._world.fabric.started):
            return None
        lease_id = self._rng.choice(started)[0].lease_id
        self._world.fabric.exit_slice(lease_id, "signal 9")
        return f"the slice of {lease_id} is killed"

    def _end_a_lease(self) -> str | None:
        if not (held := sorted(self._world.fabric.held)):
            return None
        lease_id = self._rng.choice(held)
        self._world.fabric.end_lease(lease_id)
        return f"the holder of {lease_id} is killed"

    def _fail_the_next_start(self) -> str:
        self._world.fabric.fail_next_start()
        return "the next slice does not start"

    def _a_machine(self) -> str | None:
        world = self._world
        if not (running := world.cloud.running):
            return None
        node_id = self._rng.choice(running)
        joined = world.fabric.alive(node_id) is not None
        how = self._rng.choice(["ends", "ends", "ends and is forgotten", "is cut off", "comes back"])
        if how == "comes back" and joined:
            world.fabric.return_node(node_id)
        elif how == "is cut off" and joined:
            world.fabric.lose_node(node_id)
        elif how.startswith("ends"):
            world.cloud.end_instance(node_id, "spot reclaimed")
            if "forgotten" in how:
                world.cloud.forget(node_id)
        else:
            return None
        return f"machine {node_id} {how}"

    def _an_offering(self) -> str | None:
        fault = self._rng.choice(["insufficient", "over_quota", "never_joins"])
        name = self._rng.choice(["rack", "cloud", "cheap"])
        broken: set[str] = getattr(self._world.cloud, fault)
        if name in broken:
            return None
        broken.add(name)
        self._until_later(f"{name} {fault}", lambda: broken.discard(name))
        return f"{name} is {fault}"

    def _slow(self) -> str | None:
        world, rng = self._world, self._rng
        part, attribute, value = rng.choice(
            [
                (world.fabric, "grant_seconds", rng.choice([2, 40])),
                (world.fabric, "start_seconds", rng.choice([2, 10])),
                (world.fabric, "release_calls_needed", rng.choice([2, 3])),
                (world.cloud, "terminate_calls_needed", rng.choice([2, 3])),
                (world.cloud, "list_lag", rng.choice([1, 3])),
            ]
        )
        return self._outage(part, attribute, value)

    # What there is.

    def _live(self) -> list[Workload]:
        ended = [state.value for state in WORKLOAD.terminal]
        with self._world.store.read() as session:
            live = select(Workload).where(Workload.state.not_in(ended)).order_by(Workload.workload_id)
            return list(session.scalars(live))

    def _running(self) -> list[str]:
        """Return the leases under which a program runs."""
        fabric = self._world.fabric
        drivers = {lease_id: fabric.driver_of(lease_id) for lease_id in sorted(fabric.held)}
        return [key for key, driver in drivers.items() if driver and driver.driver_id in fabric.running_drivers]
