"""A core that lives in memory: same promises as the real one, and it fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import Conflict, NotFound, Unavailable
from polyray.tenants.slices import (
    DriverSpec,
    DriverStatus,
    FabricNode,
    Gang,
    GangState,
    GangStatus,
    LeaseSpec,
    SliceSpec,
    SliceState,
    SliceStatus,
)

READY_LIMIT_SECONDS = 30.0


@dataclass
class FakeNode:
    node_id: str
    cpu_milli: int
    gpu_milli: int
    memory_bytes: int
    host: str = "host-a"
    alive: bool = True


@dataclass
class FakeLease:
    spec: LeaseSpec
    cluster_id: str
    slice: SliceSpec | None = None
    state: SliceState = SliceState.EMPTY
    detail: str = ""
    started_at: float = 0.0
    driver: DriverSpec | None = None
    driver_status: DriverStatus | None = None
    generation: int = 0


@dataclass
class FakeGang:
    gang: Gang
    asked_at: float
    state: GangState = GangState.PENDING
    detail: str = ""
    leases: dict[str, FakeLease] = field(default_factory=dict)
    #: One that ended does not come back.
    lost_a_lease: bool = False

    @property
    def shown(self) -> GangState:
        return GangState.PENDING if self.lost_a_lease and self.state is GangState.HELD else self.state


class FakeFabric:
    """Implements `polyray.tenants.slices.Fabric`.

    `grant_seconds` and `start_seconds` delay grants and slice starts by the clock; `available=False`
    makes every call raise `Unavailable`; `calls` is what was asked for, as (verb, id) pairs.
    """

    def __init__(self, clock: Clock | None = None, *, grant_seconds: float = 0.0, start_seconds: float = 0.0) -> None:
        self.clock = clock or SystemClock()
        self.grant_seconds, self.start_seconds = grant_seconds, start_seconds
        self.release_calls_needed = 1
        self.available = True
        self.calls: list[tuple[str, str]] = []
        #: The id of every driver that was started in truth, once for each time.
        self.programs: list[str] = []
        self._nodes: dict[str, FakeNode] = {}
        self._gangs: dict[str, FakeGang] = {}
        self._ended: dict[str, str] = {}
        self._releases: dict[str, int] = {}
        self._failing: list[tuple[str | None, str]] = []
        self._mutex = threading.RLock()

    # The machines, as a test arranges them.

    def add_node(
        self,
        node_id: str,
        cpu_milli: int = 8000,
        gpu_milli: int = 8000,
        memory_bytes: int = 2**36,
        host: str = "host-a",
    ) -> None:
        with self._mutex:
            self._nodes[node_id] = FakeNode(node_id, cpu_milli, gpu_milli, memory_bytes, host)

    def lose_node(self, node_id: str) -> None:
        """The node dies: its leases end, and every gang that had one there is removed whole."""
        with self._mutex:
            self._nodes[node_id].alive = False
            for cluster_id, held in list(self._gangs.items()):
                if any(lease.node_id == node_id for lease in held.gang.leases):
                    self.drop_gang(cluster_id, f"node {node_id} was lost")

    def drop_gang(self, cluster_id: str, detail: str = "removed by the core") -> None:
        with self._mutex:
            held = self._gangs[cluster_id]
            held.state, held.detail = GangState.REJECTED, detail
            held.leases.clear()

    def end_lease(self, lease_id: str) -> None:
        """The lease actor dies, its slice with it; its node and its gang's group stay."""
        with self._mutex:
            for held in self._gangs.values():
                if held.leases.pop(lease_id, None) is not None:
                    held.lost_a_lease = True

    def fail_next_start(self, detail: str = "port_in_use", lease_id: str | None = None) -> None:
        """The next slice start (under this lease, if given) ends in `exited` with this detail."""
        with self._mutex:
            self._failing.append((lease_id, detail))

    def exit_slice(self, lease_id: str, detail: str = "exit code 1") -> None:
        with self._mutex:
            self._exit(self._lease(lease_id), detail)

    def end_driver(self, lease_id: str, exit_code: int = 0) -> None:
        with self._mutex:
            lease = self._lease(lease_id)
            assert lease.driver is not None, "no driver was started"
            lease.driver_status = DriverStatus(driver_id=lease.driver.driver_id, running=False, exit_code=exit_code)

    def driver_of(self, lease_id: str) -> DriverSpec | None:
        with self._mutex:
            return self._lease(lease_id).driver

    def slice_of(self, lease_id: str) -> SliceSpec | None:
        with self._mutex:
            return self._lease(lease_id).slice

    def return_node(self, node_id: str) -> None:
        """A node that was lost is back, with nothing on it."""
        with self._mutex:
            self._nodes[node_id].alive = True

    def alive(self, node_id: str) -> bool | None:
        """Return whether a node lives; None if it never joined."""
        with self._mutex:
            return self._nodes[node_id].alive if node_id in self._nodes else None

    @property
    def held(self) -> dict[str, str]:
        """Every lease that the core holds, with its cluster."""
        with self._mutex:
            return {lease_id: held.gang.cluster_id for held in self._gangs.values() for lease_id in held.leases}

    @property
    def started(self) -> tuple[tuple[SliceSpec, SliceState], ...]:
        """Every slice that was started last under a lease, with its state."""
        with self._mutex:
            leases = [lease for held in self._gangs.values() for lease in held.leases.values()]
            return tuple((lease.slice, lease.state) for lease in leases if lease.slice is not None)

    @property
    def running_drivers(self) -> tuple[str, ...]:
        with self._mutex:
            statuses = [lease.driver_status for held in self._gangs.values() for lease in held.leases.values()]
            return tuple(status.driver_id for status in statuses if status is not None and status.running)

    @property
    def empty(self) -> bool:
        """Whether nothing at all is held: what must be true after everything was stopped."""
        with self._mutex:
            return not self._gangs

    # The seam.

    def nodes(self) -> tuple[FabricNode, ...]:
        with self._call("nodes"):
            return tuple(
                FabricNode(node_id=n.node_id, ray_node_id=f"ray-{n.node_id}", alive=n.alive, host=n.host)
                for n in self._nodes.values()
            )

    def grant(self, gang: Gang) -> GangStatus:
        with self._call("grant", gang.cluster_id):
            if gang.cluster_id in self._ended:
                return GangStatus(
                    cluster_id=gang.cluster_id, state=GangState.REJECTED, detail=self._ended[gang.cluster_id]
                )
            held = self._gangs.setdefault(gang.cluster_id, FakeGang(gang, self.clock.monotonic()))
            self._settle(held)
            if held.state is GangState.HELD:
                for lease in held.gang.leases:
                    held.leases.setdefault(lease.lease_id, FakeLease(lease, gang.cluster_id))
            return GangStatus(cluster_id=gang.cluster_id, state=held.state, detail=held.detail)

    def release(self, cluster_id: str) -> GangStatus:
        with self._call("release", cluster_id):
            if cluster_id in self._gangs:
                self._releases[cluster_id] = self._releases.get(cluster_id, 0) + 1
                if self._releases[cluster_id] < self.release_calls_needed:
                    return GangStatus(cluster_id=cluster_id, state=GangState.PENDING, detail="ending")
                del self._gangs[cluster_id]
            self._ended.setdefault(cluster_id, "it was released")
            return GangStatus(cluster_id=cluster_id, state=GangState.ABSENT)

    def gangs(self) -> tuple[GangStatus, ...]:
        with self._call("gangs"):
            for held in self._gangs.values():
                self._settle(held)
            return tuple(
                GangStatus(cluster_id=cluster_id, state=held.shown, detail=held.detail)
                for cluster_id, held in self._gangs.items()
            )

    def slices(self) -> tuple[SliceStatus, ...]:
        with self._call("slices"):
            return tuple(self._status(lease) for held in self._gangs.values() for lease in held.leases.values())

    def start_slice(self, spec: SliceSpec) -> None:
        with self._call("start_slice", spec.lease_id):
            lease = self._lease(spec.lease_id)
            if spec.epoch != lease.spec.epoch:
                raise Conflict(f"lease {spec.lease_id} has epoch {lease.spec.epoch}, not {spec.epoch}")
            if spec.generation <= lease.generation:
                return
            lease.slice, lease.generation = spec, spec.generation
            lease.state, lease.detail, lease.started_at = SliceState.STARTING, "", self.clock.monotonic()
            lease.driver = lease.driver_status = None
            for failing in self._failing:
                if failing[0] in {None, spec.lease_id}:
                    self._failing.remove(failing)
                    self._exit(lease, failing[1])
                    break

    def kill_slice(self, lease_id: str) -> None:
        with self._call("kill_slice", lease_id):
            lease = self._lease(lease_id)
            if lease.state in {SliceState.STARTING, SliceState.READY}:
                self._exit(lease, "killed")

    def start_driver(self, lease_id: str, spec: DriverSpec) -> None:
        with self._call("start_driver", lease_id):
            lease = self._lease(lease_id)
            if self._status(lease).state is not SliceState.READY:
                raise Conflict(f"the slice of lease {lease_id} is {lease.state}", hint="start it when it is ready")
            if lease.driver is not None and lease.driver.driver_id == spec.driver_id:
                return
            if lease.driver_status is not None and lease.driver_status.running:
                raise Conflict(f"lease {lease_id} runs driver {lease.driver_status.driver_id}", hint="stop it first")
            self.programs.append(spec.driver_id)
            lease.driver = spec
            lease.driver_status = DriverStatus(driver_id=spec.driver_id, running=True)

    def stop_driver(self, lease_id: str, driver_id: str, grace_seconds: float) -> None:
        with self._call("stop_driver", lease_id):
            status = self._lease(lease_id).driver_status
            if status is not None and status.driver_id == driver_id and status.running:
                self.end_driver(lease_id, exit_code=-15)

    # How it keeps its promises.

    @contextmanager
    def _call(self, verb: str, of: str = "") -> Iterator[None]:
        if not self.available:
            raise Unavailable("the core does not answer")
        with self._mutex:
            self.calls.append((verb, of))
            yield

    def _lease(self, lease_id: str) -> FakeLease:
        for held in self._gangs.values():
            if lease_id in held.leases:
                return held.leases[lease_id]
        raise NotFound("lease", lease_id)

    def _settle(self, held: FakeGang) -> None:
        """Move a pending gang to held if all of it fits, to rejected when its time is over."""
        if held.state is not GangState.PENDING:
            return
        waited = self.clock.monotonic() - held.asked_at
        if waited >= self.grant_seconds and self._fits(held.gang):
            held.state = GangState.HELD
            held.leases = {lease.lease_id: FakeLease(lease, held.gang.cluster_id) for lease in held.gang.leases}
        elif waited >= READY_LIMIT_SECONDS:
            held.state, held.detail = GangState.REJECTED, f"not ready in {READY_LIMIT_SECONDS:.0f} s"

    def _fits(self, gang: Gang) -> bool:
        room = {n.node_id: [n.cpu_milli, n.gpu_milli, n.memory_bytes] for n in self._nodes.values() if n.alive}
        others = [held.gang for held in self._gangs.values() if held.state is GangState.HELD]
        for lease in [lease for one in (*others, gang) for lease in one.leases]:
            left = room.get(lease.node_id, [0, 0, 0])
            for index, amount in enumerate((lease.cpu_milli, lease.gpu_milli, lease.memory_bytes)):
                left[index] -= amount
            if lease.node_id not in room and lease in gang.leases:
                return False
        return all(amount >= 0 for left in room.values() for amount in left)

    def _status(self, lease: FakeLease) -> SliceStatus:
        if lease.state is SliceState.STARTING and self.clock.monotonic() - lease.started_at >= self.start_seconds:
            lease.state = SliceState.READY
        return SliceStatus(
            lease_id=lease.spec.lease_id,
            cluster_id=lease.cluster_id,
            node_id=lease.spec.node_id,
            epoch=lease.spec.epoch,
            generation=lease.generation,
            state=lease.state,
            detail=lease.detail,
            driver=lease.driver_status,
        )

    def _exit(self, lease: FakeLease, detail: str) -> None:
        lease.state, lease.detail = SliceState.EXITED, detail
        if lease.driver_status is not None and lease.driver_status.running:
            lease.driver_status = DriverStatus(driver_id=lease.driver_status.driver_id, running=False, exit_code=-9)
