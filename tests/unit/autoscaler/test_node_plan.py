"""One node's next step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyray.autoscaler.node_plan import End, Idle, Join, Launch, Move, Observed, Seen, plan
from polyray.autoscaler.pools import Member, balance
from polyray.autoscaler.provider import Instance, InstanceState
from polyray.core.lifecycle import NodeState
from support.capacity import NOW_MS

LIMIT_MS = 600_000
HERE = ("ray-1", "host-a")


def observed(state: NodeState, **more: object) -> Observed:
    values: dict[str, object] = {
        "reserved": False,
        "waited_ms": 0,
        "join_limit_ms": LIMIT_MS,
        "live_leases": 0,
        "used_until_ms": None,
        "idle_since_ms": None,
        **more,
    }
    return Observed(state, **values)  # type: ignore[arg-type]


def instance(state: InstanceState, detail: str = "") -> Instance:
    return Instance("i-1", "nod-1", "cloud", state, NOW_MS, None, detail)


READY = observed(NodeState.READY, core=Seen.ALIVE, core_identity=HERE, row_identity=HERE, idle_since_ms=NOW_MS)


def test_an_intent_is_launched_until_it_is_not_wanted_or_too_old() -> None:
    intent = observed(NodeState.INTENDED)
    assert plan(intent, NOW_MS) == (Launch(),)
    for gone in (replace(intent, stop_requested=True), replace(intent, unwanted=True)):
        assert plan(gone, NOW_MS) == (Move(NodeState.TERMINATING, "not wanted any more"),)
    (move,) = plan(replace(intent, waited_ms=LIMIT_MS), NOW_MS)
    assert isinstance(move, Move)
    assert move.offering_failed


def test_a_launched_node_is_ready_once_the_core_shows_it() -> None:
    launched = observed(NodeState.LAUNCHED, core=Seen.ALIVE, core_identity=HERE)
    assert plan(launched, NOW_MS) == (Join(*HERE),)


def test_a_node_that_does_not_join_in_time_is_ended_and_its_offering_is_to_blame() -> None:
    launched = observed(NodeState.LAUNCHED, core=Seen.DEAD, waited_ms=LIMIT_MS - 1)
    assert plan(launched, NOW_MS) == ()
    told = "it did not join within 600 s"
    assert plan(replace(launched, waited_ms=LIMIT_MS), NOW_MS) == (
        Move(NodeState.TERMINATING, told, offering_failed=True),
    )


def test_a_node_that_ends_while_it_boots_is_not_waited_for() -> None:
    ended = observed(
        NodeState.LAUNCHED, instance=instance(InstanceState.TERMINATED, "exit code 1"), instances_known=True
    )
    told = "it ended before it joined: exit code 1"
    assert plan(ended, NOW_MS) == (Move(NodeState.TERMINATING, told, offering_failed=True),)


def test_a_new_node_that_the_provider_does_not_list_yet_is_waited_for() -> None:
    assert plan(observed(NodeState.LAUNCHED, instances_known=True), NOW_MS) == ()


def test_a_dead_node_is_lost_after_thirty_seconds_or_at_once_if_its_machine_is_gone() -> None:
    dead = replace(READY, core=Seen.DEAD, core_identity=None, dead_ms=29_999)
    assert plan(dead, NOW_MS) == ()
    assert plan(replace(dead, dead_ms=30_000), NOW_MS) == (
        Move(NodeState.LOST, "the core has called it dead for 30 s"),
    )
    gone = Move(NodeState.LOST, "its machine is gone")
    assert plan(replace(dead, instances_known=True), NOW_MS) == (gone,)
    terminated = instance(InstanceState.TERMINATED)
    assert plan(replace(dead, instances_known=True, instance=terminated), NOW_MS) == (gone,)


def test_an_outage_of_the_core_loses_no_node_however_long() -> None:
    assert plan(replace(READY, core=Seen.UNKNOWN, core_identity=None), NOW_MS + 10**9) == ()


def test_a_provider_that_lists_nothing_loses_no_node_that_the_core_sees_alive() -> None:
    assert plan(replace(READY, instances_known=True), NOW_MS) == ()


def test_a_node_is_idle_from_the_end_of_its_last_lease() -> None:
    used = replace(READY, idle_since_ms=None, used_until_ms=NOW_MS - 5)
    assert plan(used, NOW_MS) == (Idle(NOW_MS - 5),)
    assert plan(replace(used, live_leases=1), NOW_MS) == ()
    assert plan(replace(READY, live_leases=1), NOW_MS) == (Idle(None),)


def test_an_idle_node_does_not_wait_for_a_wall_clock_that_was_put_back() -> None:
    put_back = replace(READY, idle_since_ms=NOW_MS + 3_600_000, used_until_ms=NOW_MS + 3_600_000)
    assert plan(put_back, NOW_MS) == (Idle(NOW_MS),)


def test_a_node_that_came_back_under_a_new_id_is_known_by_it() -> None:
    assert plan(replace(READY, core_identity=("ray-2", "host-a")), NOW_MS) == (Join("ray-2", "host-a"),)


def test_a_node_asked_to_leave_ends_only_once_it_holds_no_lease() -> None:
    assert plan(replace(READY, stop_requested=True), NOW_MS) == (Move(NodeState.CORDONED, "asked to leave"),)
    cordoned = replace(READY, state=NodeState.CORDONED, live_leases=1)
    assert plan(cordoned, NOW_MS) == ()
    assert plan(replace(cordoned, live_leases=0), NOW_MS) == (Move(NodeState.TERMINATING),)


@pytest.mark.parametrize(
    ("reserved", "core", "next_state"),
    [
        (True, Seen.ALIVE, NodeState.READY),
        (True, Seen.DEAD, NodeState.TERMINATING),
        (False, Seen.ALIVE, NodeState.TERMINATING),
    ],
)
def test_a_lost_node_waits_for_its_leases_and_only_a_reserved_one_may_come_back(
    reserved: bool, core: Seen, next_state: NodeState
) -> None:
    lost = replace(READY, state=NodeState.LOST, reserved=reserved, core=core, live_leases=1)
    assert plan(lost, NOW_MS) == ()
    assert plan(replace(lost, live_leases=0), NOW_MS) == (Move(next_state),)


def test_the_end_is_asked_for_until_it_is_reached() -> None:
    assert plan(observed(NodeState.TERMINATING), NOW_MS) == (End(),)
    assert plan(observed(NodeState.TERMINATED), NOW_MS) == ()


def test_a_pool_replaces_a_node_only_once_its_place_is_free() -> None:
    leaving = Member("nod-1", leaving=True, used=False, created_ms=1)
    staying = Member("nod-2", leaving=False, used=False, created_ms=2)
    assert balance(2, [leaving, staying]).create == 0
    assert balance(2, [staying]).create == 1


def test_a_pool_that_shrank_stops_unused_nodes_first_then_the_newest() -> None:
    members = [Member(f"nod-{n}", leaving=False, used=n == 2, created_ms=n) for n in range(3)]
    assert balance(2, members).stop == ("nod-1",)
    assert balance(0, members).stop == ("nod-1", "nod-0", "nod-2")
