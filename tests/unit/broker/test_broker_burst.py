"""When the cloud is asked, for what, and when its nodes go again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from polyray.broker.plan import plan
from polyray.broker.snapshot import Plan
from polyray.core.resources import Resources
from polyray.core.spec import HEAD
from support.capacity import (
    MINUTE_MS,
    NOW_MS,
    ON_DEMAND,
    RESERVED,
    SPOT,
    amounts,
    cloud_node,
    gang,
    node,
    offering,
    snapshot,
    tenant,
    waiting,
)

RACK = node("n1", amounts(2, 4))
CLOUD = offering("cloud", amounts(1, 2), 1.2, max_nodes=4)


def launched(decided: Plan) -> dict[str, int]:
    return dict(Counter(launch.offering.name for launch in decided.launches))


def test_what_the_rack_cannot_hold_is_launched_and_the_rest_is_kept_free_for_it() -> None:
    job = waiting("job-a", gang(2, amounts(1)), queued_ms=1)
    decided = plan(snapshot(RACK, CLOUD, job, waiting("job-b", amounts(1), capacity=(RESERVED,))))
    assert launched(decided) == {"cloud": 1}
    assert decided.grants == ()
    assert decided.explanations["job-a"].code == "waiting_for_node"
    assert decided.explanations["job-b"].code == "behind_others"


def test_the_wait_for_a_node_names_it_and_says_since_when_and_nothing_more_is_launched() -> None:
    job = waiting("job-a", gang(2, amounts(1)))
    coming = cloud_node("nod-1", amounts(1, 2), ready=False, launched_for="job-a", since_ms=NOW_MS - 5)
    decided = plan(snapshot(RACK, CLOUD, job, coming))
    assert launched(decided) == {}
    facts = decided.explanations["job-a"].facts
    assert facts["nodes"] == [{"node": "nod-1", "offering": "cloud", "since_ms": NOW_MS - 5}]


def test_a_node_launched_for_a_workload_is_held_for_it() -> None:
    arrived = cloud_node("nod-1", amounts(1, 2), launched_for="job-b")
    other, owner = waiting("job-a", amounts(1), queued_ms=1, priority=2), waiting("job-b", amounts(1))
    (grant,) = plan(snapshot(arrived, other, owner)).grants
    assert grant.workload_id == "job-b"
    (grant,) = plan(snapshot(arrived, other)).grants
    assert grant.workload_id == "job-a", "once its owner waits no more it is anybody's"


def test_the_rest_of_a_node_is_anybodys_once_its_owner_starts() -> None:
    arrived = cloud_node("nod-1", amounts(2, 2), launched_for="job-a")
    decided = plan(snapshot(arrived, waiting("job-a", amounts(1), queued_ms=1), waiting("job-b", amounts(1))))
    assert [grant.workload_id for grant in decided.grants] == ["job-a", "job-b"]


def test_the_cheapest_offering_wins_and_the_receipt_says_what_was_considered() -> None:
    offers = (
        offering("dear", amounts(8, 8), 9.0),
        offering("cheap", amounts(4, 4), 2.0),
        offering("small", amounts(1, 1), 0.1),
        offering("spot", amounts(4, 4), 0.5, capacity_type=SPOT),
    )
    decided = plan(snapshot(*offers, waiting("job-a", amounts(4, 4))))
    (launch,) = decided.launches
    assert launch.offering.name == "cheap"
    receipt = launch.receipt
    assert receipt["considered"] == [
        {"offerings": ["cheap"], "usd_micros_per_hour": 2_000_000},
        {"offerings": ["dear"], "usd_micros_per_hour": 9_000_000},
    ]
    assert receipt["refused"] == {"spot": "spot is not among the capacity types that it accepts"}
    assert receipt["estimated_usd_micros"] == 2_000_000
    assert "cheap for $2.00 an hour" in str(receipt["why"])


def test_one_large_node_is_taken_where_it_is_cheaper_than_many_small_ones() -> None:
    large, small = offering("large", amounts(8, 8), 3.0), offering("small", amounts(1, 1), 1.0)
    assert launched(plan(snapshot(large, small, waiting("job-a", gang(4, amounts(1)))))) == {"large": 1}
    assert launched(plan(snapshot(large, small, waiting("job-a", gang(1, amounts(1)))))) == {"small": 1}


def test_the_head_is_launched_on_demand_and_the_workers_on_spot() -> None:
    offers = offering("steady", amounts(1, 1), 1.0), offering("spot", amounts(1, 1), 0.3, capacity_type=SPOT)
    job = waiting("job-a", gang(3, amounts(1)), capacity=(SPOT, ON_DEMAND))
    assert launched(plan(snapshot(*offers, job))) == {"steady": 1, "spot": 3}


def test_spot_at_the_on_demand_price_is_no_spot() -> None:
    offers = offering("steady", amounts(1, 1), 1.0), offering("spot", amounts(1, 1), 1.0, capacity_type=SPOT)
    job = waiting("job-a", amounts(1), capacity=(SPOT, ON_DEMAND))
    assert launched(plan(snapshot(*offers, job))) == {"steady": 1}


def test_an_offering_that_failed_rests_and_another_is_used() -> None:
    offers = offering("cheap", amounts(1), 1.0), offering("dear", amounts(1), 2.0)
    resting = snapshot(*offers, waiting("job-a", amounts(1)), cooling=(("cheap", NOW_MS + 1),))
    assert launched(plan(resting)) == {"dear": 1}
    assert launched(plan(replace(resting, now_ms=NOW_MS + 1))) == {"cheap": 1}


def test_no_more_nodes_are_launched_than_the_offering_allows_those_that_leave_included() -> None:
    job = waiting("job-a", gang(4, amounts(1, 2)))
    rooms = snapshot(replace(CLOUD, resources=amounts(1, 2)), node("n1", amounts(2, 4), amounts(1, 1)), job)
    assert launched(plan(rooms)) == {"cloud": 4}
    decided = plan(replace(rooms, leaving=(("cloud", 1),)))
    assert launched(decided) == {}
    cloud = decided.explanations["job-a"].facts["cloud"]
    assert cloud == {}, "it may be launched, but too few of it"


def test_an_impossible_gang_launches_nothing_at_all() -> None:
    special = Resources({"cpu": 1000, "memory": 2**30, "special": 1000})
    job = waiting("job-a", (HEAD, special, *[amounts(1)] * 8))
    rich = tenant(nominal=amounts(100, 100, special=8))
    decided = plan(snapshot(rich, offering("cloud", amounts(2, 2)), job))
    assert (decided.launches, decided.grants) == ((), ())
    (refusal,) = decided.refusals
    assert refusal.explanation.code == "infeasible"
    assert refusal.explanation.facts["rank"] == 1


def test_the_cloud_is_not_asked_before_max_wait_has_passed() -> None:
    patient = waiting("job-a", amounts(1), max_wait_ms=2 * MINUTE_MS, queued_ms=NOW_MS - MINUTE_MS)
    seen = snapshot(node("n1", amounts(1), amounts(1)), CLOUD, patient)
    decided = plan(seen)
    assert launched(decided) == {}
    assert decided.explanations["job-a"].facts["burst_ms"] == NOW_MS + MINUTE_MS
    assert launched(plan(replace(seen, now_ms=NOW_MS + MINUTE_MS))) == {"cloud": 1}


def test_a_launch_beyond_the_budget_is_refused_with_what_it_would_cost_and_what_is_left() -> None:
    job = waiting("job-a", gang(2, amounts(1)), max_duration_ms=120 * MINUTE_MS)
    seen = snapshot(tenant(budget_left_usd_micros=2_400_000), RACK, CLOUD, job)
    assert launched(plan(seen)) == {"cloud": 1}
    decided = plan(replace(seen, tenants=(tenant(budget_left_usd_micros=2_399_999),)))
    assert launched(decided) == {}
    explanation = decided.explanations["job-a"]
    assert explanation.code == "budget_exhausted"
    assert (explanation.facts["estimated_usd_micros"], explanation.facts["left_usd_micros"]) == (2_400_000, 2_399_999)
    assert "$2.40" in explanation.cause


def test_two_launches_of_one_cycle_share_the_budget() -> None:
    jobs = waiting("job-a", amounts(1), queued_ms=1), waiting("job-b", amounts(1))
    decided = plan(snapshot(tenant(budget_left_usd_micros=1_500_000), CLOUD, *jobs))
    assert [launch.workload_id for launch in decided.launches] == ["job-a"]
    assert decided.explanations["job-b"].code == "budget_exhausted"


def test_max_cost_counts_what_was_spent_before() -> None:
    job = waiting("job-a", amounts(1), max_cost_usd_micros=2_000_000)
    assert launched(plan(snapshot(CLOUD, job))) == {"cloud": 1}
    decided = plan(snapshot(CLOUD, replace(job, spent_usd_micros=900_000)))
    assert launched(decided) == {}
    assert decided.explanations["job-a"].facts["max_cost_usd_micros"] == 2_000_000


def test_a_workload_without_budget_left_still_takes_reserved_capacity_first_in_line() -> None:
    poor = tenant(budget_left_usd_micros=0)
    busy = node("n1", amounts(2, 4), amounts(1))
    seen = snapshot(poor, busy, CLOUD, waiting("job-large", amounts(2), queued_ms=1), waiting("job-small", amounts(1)))
    decided = plan(replace(seen, offerings=(replace(CLOUD, resources=amounts(2, 4)),)))
    assert decided.grants == ()
    assert decided.explanations["job-large"].code == "budget_exhausted"


def test_the_plan_does_not_launch_where_a_reserved_node_is_on_its_way() -> None:
    coming = node("n1", amounts(2, 4), ready=False)
    decided = plan(snapshot(coming, CLOUD, waiting("job-a", amounts(1))))
    assert launched(decided) == {}
    assert decided.explanations["job-a"].code == "waiting_for_node"


# Nodes that go again.


def test_an_idle_cloud_node_is_drained_after_its_time_and_a_reserved_one_never() -> None:
    idle = cloud_node("nod-1", amounts(1, 2), idle_since_ms=NOW_MS - 60_000)
    rack = node("n1", amounts(2, 4), idle_since_ms=NOW_MS - 10**9)
    seen = snapshot(idle, rack, idle_seconds=60)
    assert [drain.node_id for drain in plan(seen).drains] == ["nod-1"]
    assert plan(replace(seen, idle_seconds=61)).drains == ()


def test_a_node_that_a_collecting_gang_is_going_to_use_is_not_drained() -> None:
    job = waiting("job-a", gang(3, amounts(1, 2)), capacity=(ON_DEMAND,))
    idle = [
        cloud_node(f"nod-{n}", amounts(1, 2), idle_since_ms=NOW_MS - 20_000, launched_for="job-a") for n in range(3)
    ]
    coming = cloud_node("nod-3", amounts(1, 2), ready=False, launched_for="job-a")
    assert plan(snapshot(CLOUD, job, *idle, coming, idle_seconds=5)).drains == ()


def test_nodes_of_a_gang_are_kept_while_the_offering_of_the_missing_one_rests() -> None:
    job = waiting("job-a", gang(3, amounts(1, 2)), capacity=(ON_DEMAND,))
    idle = [
        cloud_node(f"nod-{n}", amounts(1, 2), idle_since_ms=NOW_MS - 20_000, launched_for="job-a") for n in range(3)
    ]
    seen = snapshot(CLOUD, job, *idle, idle_seconds=5, cooling=(("cloud", NOW_MS + 30_000),))
    assert plan(seen).drains == ()


def test_the_nodes_of_a_workload_that_may_not_start_are_drained() -> None:
    idle = cloud_node("nod-1", amounts(1, 2), idle_since_ms=NOW_MS - 20_000, launched_for="job-a")
    seen = snapshot(tenant(suspended=True), idle, waiting("job-a", amounts(1)), idle_seconds=5)
    assert [drain.node_id for drain in plan(seen).drains] == ["nod-1"]
