"""What the core's own tables say of gangs and leases. Pure.

Nothing is remembered between calls: after a restart of this process the core alone tells what is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from polyray.tenants.slices import GangState, GangStatus, LeaseSpec

READY_LIMIT_MS = 30_000
#: An actor's process may take its time on a loaded node; its group is held meanwhile.
ACTOR_LIMIT_MS = 120_000


class GroupState(StrEnum):
    """States of Ray's placement groups, under their names in its tables."""

    PENDING = "PENDING"
    PREPARED = "PREPARED"
    CREATED = "CREATED"
    REMOVED = "REMOVED"
    RESCHEDULING = "RESCHEDULING"


@dataclass(frozen=True)
class Group:
    """A placement group: a gang as the core holds it. Its name is the cluster's id."""

    group_id: str
    cluster_id: str
    state: GroupState
    bundles: int
    created_ms: int


@dataclass(frozen=True)
class LeaseRecord:
    """A lease actor that is not dead. Its name is the lease's id."""

    actor_id: str
    lease_id: str
    group_id: str
    alive: bool


def gang_status(group: Group, leases: tuple[LeaseRecord, ...], now_ms: int) -> GangStatus:
    """Return how far a gang is. `leases` may hold those of other gangs too."""
    alive = sum(lease.alive for lease in leases if lease.group_id == group.group_id)
    waited_ms = now_ms - group.created_ms

    def status(state: GangState, detail: str = "") -> GangStatus:
        return GangStatus(cluster_id=group.cluster_id, state=state, detail=detail)

    if group.state is GroupState.REMOVED:
        return status(GangState.REJECTED, "it was removed from the core")
    if group.state is GroupState.RESCHEDULING:
        return status(GangState.REJECTED, "a node that held one of its leases was lost")
    if group.state in {GroupState.PENDING, GroupState.PREPARED}:
        if waited_ms > READY_LIMIT_MS:
            return status(GangState.REJECTED, f"the core could not place it in {READY_LIMIT_MS // 1000} s")
        return status(GangState.PENDING, "the core is placing it")
    if alive == group.bundles:
        return status(GangState.HELD)
    if alive == 0 and waited_ms > ACTOR_LIMIT_MS and not any(lease.group_id == group.group_id for lease in leases):
        return status(GangState.REJECTED, "none of its lease actors lives")
    return status(GangState.PENDING, f"{alive} of {group.bundles} leases are held")


def bundle_of(lease: LeaseSpec) -> dict[str, float]:
    """Return a lease's resources in Ray's units, without those it needs none of."""
    amounts = {"CPU": lease.cpu_milli / 1000, "GPU": lease.gpu_milli / 1000, "memory": float(lease.memory_bytes)}
    return {name: amount for name, amount in amounts.items() if amount}
