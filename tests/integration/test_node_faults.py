"""What becomes of nodes when their cloud or the core fails, one fault at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyray.autoscaler.offerings import offerings_of
from polyray.autoscaler.provider import Instance
from polyray.core.errors import Unavailable
from polyray.core.lifecycle import NodeState
from polyray.core.spec import CapacityType
from polyray.tenants.slices import FabricNode
from support.fleet import CLOUD, Fleet


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
    for seconds in range(0, 24, 6):
        job = fleet.submit()
        fleet.settle(seconds)
        fleet.stop(job)
        fleet.settle(40, step_seconds=2)
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


def test_a_node_that_comes_back_elsewhere_while_it_is_looked_at_is_known_where_it_is(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rack,) = fleet.rows(NodeState.READY, pool="rack")
    ask = fleet.fabric.nodes
    with monkeypatch.context() as slow:

        def answer_late() -> tuple[FabricNode, ...]:
            found = ask()
            fleet.clock.advance(1)
            fleet.fabric._nodes[rack.node_id].host = "host-b"
            return found

        slow.setattr(fleet.fabric, "nodes", answer_late)
        fleet.clock.advance(1)
        fleet.nodes.reconcile(rack.node_id)
    fleet.settle(5, plan=False)
    (rack,) = fleet.rows(NodeState.READY, pool="rack")
    assert rack.host == "host-b"
