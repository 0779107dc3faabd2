"""What the core's tables say of a gang."""

from __future__ import annotations

import pytest

from polyray.fabric.tables import ACTOR_LIMIT_MS, READY_LIMIT_MS, Group, GroupState, LeaseRecord, bundle_of, gang_status
from polyray.tenants.slices import GangState, LeaseSpec


def group(state: GroupState, *, bundles: int = 2) -> Group:
    return Group("aa01", "clu-000000000001", state, bundles, created_ms=1_000_000)


def lease(number: int, *, alive: bool = True, group_id: str = "aa01") -> LeaseRecord:
    return LeaseRecord(f"actor{number}", f"lea-{number}", group_id, alive)


def state_of(what: Group, *leases: LeaseRecord, after_ms: int = 0) -> GangState:
    return gang_status(what, leases, what.created_ms + after_ms).state


def test_a_gang_is_held_once_all_its_leases_live() -> None:
    assert state_of(group(GroupState.CREATED), lease(1), lease(2)) is GangState.HELD


@pytest.mark.parametrize(
    "leases", [(), (lease(1),), (lease(1), lease(2, alive=False)), (lease(1), lease(3, group_id="b"))]
)
def test_a_gang_is_pending_while_a_lease_is_missing(leases: tuple[LeaseRecord, ...]) -> None:
    assert state_of(group(GroupState.CREATED), *leases) is GangState.PENDING


@pytest.mark.parametrize("state", [GroupState.PENDING, GroupState.PREPARED])
def test_a_gang_that_cannot_be_placed_is_rejected_after_its_limit(state: GroupState) -> None:
    assert state_of(group(state), after_ms=READY_LIMIT_MS) is GangState.PENDING
    assert state_of(group(state), after_ms=READY_LIMIT_MS + 1) is GangState.REJECTED


def test_a_gang_that_lost_a_node_is_rejected_whole() -> None:
    assert state_of(group(GroupState.RESCHEDULING), lease(1)) is GangState.REJECTED


def test_a_gang_that_was_removed_is_never_granted_again() -> None:
    assert state_of(group(GroupState.REMOVED)) is GangState.REJECTED


def test_a_placed_gang_without_any_lease_is_given_up_in_the_end() -> None:
    assert state_of(group(GroupState.CREATED), after_ms=ACTOR_LIMIT_MS) is GangState.PENDING
    assert state_of(group(GroupState.CREATED), after_ms=ACTOR_LIMIT_MS + 1) is GangState.REJECTED


def test_a_lease_asks_the_core_for_its_resources_in_rays_units_and_for_nothing_it_does_not_need() -> None:
    lease_spec = LeaseSpec(lease_id="lea-1", epoch=1, node_id="nod-1", cpu_milli=1500, gpu_milli=0, memory_bytes=2**30)
    assert bundle_of(lease_spec) == {"CPU": 1.5, "memory": 2.0**30}
