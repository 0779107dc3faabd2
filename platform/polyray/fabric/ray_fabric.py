"""The core's driver: gangs as detached placement groups, leases as detached actors in them.

The group of a cluster is named by the cluster's id and each lease actor by its lease's id, so every call
finds what an earlier one made, whoever made it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import ray
import structlog
from ray._private.state import state as core_state
from ray.core.generated import gcs_pb2
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import NotFound, PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.core.settings import Settings
from polyray.fabric.core_head import core_place
from polyray.fabric.lease_actor import LeaseActor
from polyray.fabric.tables import Group, GroupState, LeaseRecord, bundle_of, gang_status
from polyray.tenants.slices import (
    DriverSpec,
    FabricNode,
    Gang,
    GangState,
    GangStatus,
    LeaseSpec,
    SliceSpec,
    SliceStatus,
)

log = structlog.get_logger(__name__)

NAMESPACE = "polyray"
#: The label that ties a core node to our row of it.
NODE_LABEL = "polyray/node"
#: A lease actor answers from memory; one that does not in this time is not well, or its node is not.
ANSWER_SECONDS = 3.0
#: A lease actor that has not ended its slice by then is killed; the slice dies with it.
RELEASE_LIMIT_SECONDS = 10.0
#: A status this old is still shown for an actor that the core says is alive but that does not answer.
STALE_LIMIT_SECONDS = 60.0
_LIVING = ("ALIVE", "PENDING_CREATION", "DEPENDENCIES_UNREADY", "RESTARTING")


class RayFabric:
    """Implements `polyray.tenants.slices.Fabric`. Calls may block while the core does not answer: bound them."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings, self._clock = settings, clock or SystemClock()
        #: Grants and releases come one at a time: two of one cluster must not cross.
        self._changing = threading.Lock()
        self._handles: dict[str, Any] = {}
        self._last_seen: dict[str, tuple[float, SliceStatus]] = {}
        self._release_began: dict[str, float] = {}

    def connect(self) -> None:
        """Attach to the core as a driver, once per process; `RAY_AUTH_*` must be in its environment from its start."""
        place = core_place(self._settings)
        ray.init(
            address=place.gcs_address,
            namespace=NAMESPACE,
            _node_ip_address=place.ip,
            log_to_driver=False,
            configure_logging=False,
        )

    def nodes(self) -> tuple[FabricNode, ...]:
        return tuple(
            FabricNode(
                node_id=node["Labels"][NODE_LABEL],
                ray_node_id=node["NodeID"],
                alive=node["Alive"],
                host=node["NodeManagerHostname"],
            )
            for node in ray.nodes()
            if NODE_LABEL in node["Labels"]
        )

    def gangs(self) -> tuple[GangStatus, ...]:
        leases, now_ms = self._leases(), self._clock.now_ms()
        held = {lease.group_id for lease in leases}
        return tuple(
            gang_status(group, leases, now_ms)
            for group in self._groups()
            if group.state is not GroupState.REMOVED or group.group_id in held
        )

    def grant(self, gang: Gang) -> GangStatus:
        with self._changing:
            group = self._group(gang.cluster_id)
            if group is None:
                with outside("core.make_group"):
                    placement_group(
                        [bundle_of(lease) for lease in gang.leases],
                        strategy="PACK",
                        name=gang.cluster_id,
                        lifetime="detached",
                        bundle_label_selector=[{NODE_LABEL: lease.node_id} for lease in gang.leases],
                    )
                return GangStatus(cluster_id=gang.cluster_id, state=GangState.PENDING, detail="asked of the core")
            leases = self._leases()
            status = gang_status(group, leases, self._clock.now_ms())
            if status.state is GangState.REJECTED and group.state is not GroupState.REMOVED:
                _remove(group)
            elif status.state is GangState.PENDING and group.state is GroupState.CREATED:
                known = {lease.lease_id for lease in leases}
                for index, lease in enumerate(gang.leases):
                    if lease.lease_id not in known:
                        with outside("core.make_actor"):
                            self._make_lease_actor(gang.cluster_id, lease, group, index)
            return status

    def release(self, cluster_id: str) -> GangStatus:
        """End slices first, then the actors, then the group, so that `absent` means that nothing is left."""
        with self._changing:
            group = self._group(cluster_id)
            leases = tuple(lease for lease in self._leases() if group and lease.group_id == group.group_id)
            if group is None or (group.state is GroupState.REMOVED and not leases):
                self._release_began.pop(cluster_id, None)
                return GangStatus(cluster_id=cluster_id, state=GangState.ABSENT)
            began = self._release_began.setdefault(cluster_id, self._clock.monotonic())
            overdue = self._clock.monotonic() - began > RELEASE_LIMIT_SECONDS
            ended = self._end_slices(leases)
            for lease in leases:
                if lease.lease_id in ended or overdue or not lease.alive:
                    self._kill(lease)
            if overdue or len(ended) == sum(lease.alive for lease in leases):
                _remove(group)
                return self._wait_absent(cluster_id, group.group_id)
            return GangStatus(
                cluster_id=cluster_id, state=GangState.PENDING, detail=f"{len(leases) - len(ended)} leases are ending"
            )

    def slices(self) -> tuple[SliceStatus, ...]:
        alive = [lease for lease in self._leases() if lease.alive]
        calls = {lease.actor_id: self._actor(lease).status.remote() for lease in alive}
        if calls:
            ray.wait(list(calls.values()), num_returns=len(calls), timeout=ANSWER_SECONDS)
        now, answers = self._clock.monotonic(), []
        for lease in alive:
            try:
                status = SliceStatus.model_validate_json(ray.get(calls[lease.actor_id], timeout=0))
                self._last_seen[lease.actor_id] = (now, status)
            except RayActorError:
                continue
            except GetTimeoutError:
                seen = self._last_seen.get(lease.actor_id)
                if seen is None or now - seen[0] > STALE_LIMIT_SECONDS:
                    # One silent holder must not hide everybody else's: its own cluster is judged by its absence.
                    log.warning("lease_silent", lease=lease.lease_id)
                    continue
                status = seen[1]
            answers.append(status)
        living = {lease.actor_id for lease in alive}
        self._last_seen = {actor: seen for actor, seen in self._last_seen.items() if actor in living}
        self._handles = {actor: handle for actor, handle in self._handles.items() if actor in living}
        return tuple(answers)

    def start_slice(self, spec: SliceSpec) -> None:
        self._ask(spec.lease_id, "start_slice", spec.model_dump_json())

    def kill_slice(self, lease_id: str) -> None:
        self._ask(lease_id, "kill_slice")

    def start_driver(self, lease_id: str, spec: DriverSpec) -> None:
        self._ask(lease_id, "start_driver", spec.model_dump_json())

    def stop_driver(self, lease_id: str, driver_id: str, grace_seconds: float) -> None:
        self._ask(lease_id, "stop_driver", driver_id, grace_seconds)

    # The core's tables.

    def _groups(self) -> list[Group]:
        records = core_state._connect_and_get_accessor().get_placement_group_table()
        groups = [gcs_pb2.PlacementGroupTableData.FromString(record) for record in records]
        states = gcs_pb2.PlacementGroupTableData.PlacementGroupState
        return [
            Group(
                group_id=group.placement_group_id.hex(),
                cluster_id=group.name,
                state=GroupState(states.Name(group.state)),
                bundles=len(group.bundles),
                created_ms=group.placement_group_creation_timestamp_ms,
            )
            for group in groups
            if group.ray_namespace == NAMESPACE
        ]

    def _group(self, cluster_id: str) -> Group | None:
        """Return the cluster's group, also one that was removed: a cluster is granted once in its life."""
        mine = [group for group in self._groups() if group.cluster_id == cluster_id]
        return min(mine, key=lambda group: group.state is GroupState.REMOVED, default=None)

    def _leases(self) -> tuple[LeaseRecord, ...]:
        accessor = core_state._connect_and_get_accessor()
        records = [
            gcs_pb2.ActorTableData.FromString(record)
            for state in _LIVING
            for record in accessor.get_actor_table(None, state)
        ]
        states = gcs_pb2.ActorTableData.ActorState
        return tuple(
            LeaseRecord(
                actor_id=actor.actor_id.hex(),
                lease_id=actor.name,
                group_id=actor.placement_group_id.hex(),
                alive=states.Name(actor.state) == "ALIVE",
            )
            for actor in records
            if actor.ray_namespace == NAMESPACE and actor.placement_group_id
        )

    # The lease actors.

    def _make_lease_actor(self, cluster_id: str, lease: LeaseSpec, group: Group, index: int) -> None:
        ray.remote(LeaseActor).options(
            name=lease.lease_id,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            # A lease that died is not brought back by the core: whoever granted it decides.
            max_restarts=0,
            # The bundle holds the resources; the actor itself needs next to none of them.
            num_cpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(_handle_of(group), index),
        ).remote(
            lease.lease_id,
            cluster_id,
            lease.node_id,
            lease.epoch,
            str(self._settings.ray_dir),
            self._settings.concurrent_starts,
        )

    def _actor(self, lease: LeaseRecord) -> Any:
        if lease.actor_id not in self._handles:
            self._handles[lease.actor_id] = ray.get_actor(lease.lease_id, namespace=NAMESPACE)
        return self._handles[lease.actor_id]

    def _ask(self, lease_id: str, method: str, *arguments: object) -> None:
        lease = next((one for one in self._leases() if one.lease_id == lease_id and one.alive), None)
        if lease is None:
            raise NotFound("lease", lease_id)
        try:
            with outside(f"actor.{method}"):
                ray.get(getattr(self._actor(lease), method).remote(*arguments), timeout=ANSWER_SECONDS)
        except RayTaskError as error:
            if isinstance(error.cause, PolyrayError):
                raise error.cause from None
            raise
        except RayActorError:
            raise NotFound("lease", lease_id) from None
        except GetTimeoutError:
            raise Unavailable(f"the holder of lease {lease_id} does not answer") from None

    def _end_slices(self, leases: tuple[LeaseRecord, ...]) -> set[str]:
        """Ask the lease actors to end their slices; return the leases of which nothing is left."""
        with outside("actor.end"):
            calls = {each.lease_id: self._actor(each).end.remote(ANSWER_SECONDS - 1.0) for each in leases if each.alive}
            if calls:
                ray.wait(list(calls.values()), num_returns=len(calls), timeout=ANSWER_SECONDS)
        ended = set()
        for lease_id, call in calls.items():
            try:
                if ray.get(call, timeout=0):
                    ended.add(lease_id)
            except RayActorError:
                ended.add(lease_id)
            except GetTimeoutError:
                continue
        return ended

    def _kill(self, lease: LeaseRecord) -> None:
        try:
            with outside("core.kill_actor"):
                ray.kill(self._actor(lease), no_restart=True)
        except ValueError:
            pass  # It is gone.

    def _wait_absent(self, cluster_id: str, group_id: str) -> GangStatus:
        """Give the core a moment to say that all is gone; the next call looks again."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            group = self._group(cluster_id)
            left = [lease for lease in self._leases() if lease.group_id == group_id]
            if (group is None or group.state is GroupState.REMOVED) and not left:
                self._release_began.pop(cluster_id, None)
                log.info("gang_released", cluster=cluster_id)
                return GangStatus(cluster_id=cluster_id, state=GangState.ABSENT)
            time.sleep(0.05)
        return GangStatus(cluster_id=cluster_id, state=GangState.PENDING, detail="the core is removing it")


def _remove(group: Group) -> None:
    with outside("core.remove_group"):
        remove_placement_group(_handle_of(group))


def _handle_of(group: Group) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group.group_id)))
