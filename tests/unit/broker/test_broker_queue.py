"""Who runs now, who waits, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyray.broker.plan import plan
from polyray.broker.snapshot import Plan
from polyray.core.resources import ANY_GPU, Resources
from polyray.core.spec import Kind
from support.capacity import (
    MINUTE_MS,
    NOW_MS,
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


def granted(decided: Plan) -> list[str]:
    return [grant.workload_id for grant in decided.grants]


def test_the_older_workload_of_one_priority_runs_first() -> None:
    seen = snapshot(
        node("n1", amounts(1)),
        waiting("job-young", amounts(1), queued_ms=NOW_MS - 1),
        waiting("job-old", amounts(1), queued_ms=NOW_MS - 2),
    )
    decided = plan(seen)
    assert granted(decided) == ["job-old"]
    assert decided.explanations["job-young"].code == "waiting_for_capacity"


def test_a_higher_priority_overtakes_age() -> None:
    seen = snapshot(
        node("n1", amounts(1)),
        waiting("job-old", amounts(1), queued_ms=NOW_MS - 2),
        waiting("job-high", amounts(1), queued_ms=NOW_MS - 1, priority=2),
    )
    assert granted(plan(seen)) == ["job-high"]


def test_a_gang_is_granted_whole_or_not_at_all() -> None:
    three = gang(2, amounts(2))
    assert granted(plan(snapshot(node("n1", amounts(3, 8)), node("n2", amounts(1)), waiting("job-a", three)))) == []
    decided = plan(snapshot(node("n1", amounts(3, 8)), node("n2", amounts(2)), waiting("job-a", three)))
    assert [placement.rank for placement in decided.grants[0].placements] == [0, 1, 2]


def test_a_head_goes_where_it_costs_the_workers_least() -> None:
    # On n1 the head would leave room for one worker less; best fit alone would put it there.
    seen = snapshot(node("n1", amounts(2, 8)), node("n2", amounts(3, 8)), waiting("job-a", gang(2, amounts(2))))
    (grant,) = plan(seen).grants
    assert [placement.node_id for placement in grant.placements] == ["n2", "n2", "n1"]


def test_ten_tenths_of_a_gpu_share_one_device_and_the_eleventh_waits() -> None:
    jobs = [waiting(f"job-{n:02}", amounts(0.1, 1, h100=0.1)) for n in range(11)]
    decided = plan(snapshot(node("n1", amounts(64, 64, h100=1)), *jobs))
    assert granted(decided) == [f"job-{n:02}" for n in range(10)]
    assert {placement.devices for grant in decided.grants for placement in grant.placements} == {((0, 100),)}
    assert decided.explanations["job-10"].code == "waiting_for_capacity"
    assert decided.explanations["job-10"].facts["lacking"] == amounts(0.1, 1, h100=0.1).as_dict()


def test_a_fraction_never_spans_devices() -> None:
    half_used = replace(node("n1", amounts(8, 8, h100=2)), used=amounts(1, 1, h100=1), free_devices=(500, 500))
    assert granted(plan(snapshot(half_used, waiting("job-a", amounts(1, 1, h100=0.6))))) == []
    assert granted(plan(snapshot(half_used, waiting("job-a", amounts(1, 1, h100=1))))) == []
    assert granted(plan(snapshot(half_used, waiting("job-a", amounts(1, 1, h100=0.5))))) == ["job-a"]


def test_a_fraction_fills_a_device_that_is_begun_before_it_takes_a_whole_one() -> None:
    seen = snapshot(
        node("n1", amounts(8, 8, h100=2)),
        waiting("job-a", amounts(1, 1, h100=0.5), queued_ms=1),
        waiting("job-b", amounts(1, 1, h100=0.25), queued_ms=2),
        waiting("job-c", amounts(1, 1, h100=1), queued_ms=3),
    )
    assert [grant.placements[0].devices for grant in plan(seen).grants] == [((0, 500),), ((0, 250),), ((1, 1000),)]


def test_any_gpu_takes_the_nodes_own_flavor_and_one_flavor_per_gang() -> None:
    one = amounts(1, 1, **{ANY_GPU: 1})
    seen = snapshot(node("n1", amounts(8, 8, a10=1)), node("n2", amounts(8, 8, h100=2)), waiting("job-a", gang(2, one)))
    (grant,) = plan(seen).grants
    workers = [placement for placement in grant.placements if placement.rank > 0]
    assert {placement.node_id for placement in workers} == {"n2"}
    assert all(placement.resources == amounts(1, 1, h100=1) for placement in workers)


def test_any_gpu_is_only_taken_where_the_tenant_has_quota() -> None:
    one = amounts(1, 1, **{ANY_GPU: 1})
    machines = node("n1", amounts(8, 8, a10=1)), node("n2", amounts(8, 8, h100=1))
    seen = snapshot(tenant(nominal=amounts(8, 8, h100=1)), *machines, waiting("job-a", one))
    assert plan(seen).grants[0].placements[0].node_id == "n2"


@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.SERVICE])
def test_heads_that_must_last_never_sit_on_spot(kind: Kind) -> None:
    spot = cloud_node("n1", amounts(8, 8), capacity_type=SPOT)
    alone = waiting("wl-a", amounts(1), capacity=(SPOT,), kind=kind)
    assert granted(plan(snapshot(spot, alone))) == []
    assert granted(plan(snapshot(spot, replace(alone, kind=Kind.JOB)))) == ["wl-a"]


def test_the_head_of_several_bundles_never_sits_on_spot_but_its_workers_may() -> None:
    nodes = cloud_node("n1", amounts(8, 8), capacity_type=SPOT), node("n2", amounts(1))
    seen = snapshot(*nodes, waiting("job-a", gang(2, amounts(1)), capacity=(RESERVED, SPOT)))
    (grant,) = plan(seen).grants
    assert [placement.node_id for placement in grant.placements] == ["n2", "n1", "n1"]


def test_reserved_goes_before_spot_and_spot_before_on_demand() -> None:
    nodes = (
        cloud_node("n1", amounts(1)),
        cloud_node("n2", amounts(1), capacity_type=SPOT),
        node("n3", amounts(1)),
    )
    every = (RESERVED, SPOT, nodes[0].capacity_type)
    jobs = [waiting(f"job-{n}", amounts(1), capacity=every) for n in range(3)]
    assert [grant.placements[0].node_id for grant in plan(snapshot(*nodes, *jobs)).grants] == ["n3", "n2", "n1"]


def test_only_capacity_types_that_it_accepts_are_used() -> None:
    seen = snapshot(cloud_node("n1", amounts(8, 8)), waiting("job-a", amounts(1), capacity=(RESERVED,)))
    assert granted(plan(seen)) == []


def test_a_small_job_fills_the_node_it_fits_best_and_keeps_off_gpus_it_does_not_use() -> None:
    seen = snapshot(
        node("n1", amounts(1, 1, h100=1)),
        node("n2", amounts(8, 8)),
        node("n3", amounts(2, 2)),
        waiting("job-a", amounts(1)),
    )
    assert plan(seen).grants[0].placements[0].node_id == "n3"


# Quota.


def test_over_quota_says_which_flavor_how_much_is_used_and_how_much_was_asked() -> None:
    held = tenant(nominal=amounts(64, 64, h100=8), used=amounts(8, 8, h100=6))
    decided = plan(snapshot(held, node("n1", amounts(64, 64, h100=8)), waiting("job-a", amounts(4, 4, h100=4))))
    explanation = decided.explanations["job-a"]
    assert explanation.code == "quota_exceeded"
    assert explanation.cause == "it asks for h100 4 while the tenant uses 6 of its quota of 8"
    facts = {"flavor": "h100", "used": 6000, "nominal": 8000, "asked": 4000}
    assert explanation.facts == {**facts, "position": 1, "ahead": [], "ahead_of_other_tenants": 0}


def test_borrowing_goes_up_to_its_limit_and_not_beyond() -> None:
    held = tenant(nominal=amounts(64, 64, h100=4), borrowing_limit=Resources(h100=2000), used=amounts(4, 4, h100=4))
    big = node("n1", amounts(64, 64, h100=8))
    assert granted(plan(snapshot(held, big, waiting("job-a", amounts(1, 1, h100=2))))) == ["job-a"]
    decided = plan(snapshot(held, big, waiting("job-a", amounts(1, 1, h100=3))))
    assert "may borrow 2" in decided.explanations["job-a"].cause


def test_a_job_that_asks_nothing_of_an_exhausted_flavor_runs() -> None:
    held = tenant(nominal=amounts(64, 64, h100=8), used=amounts(8, 8, h100=8))
    none_asked = Resources({"cpu": 1000, "memory": 2**30, "h100": 0})
    assert granted(plan(snapshot(held, node("n1", amounts(64, 64)), waiting("job-a", none_asked)))) == ["job-a"]


def test_a_flavor_without_a_quota_allows_nothing() -> None:
    decided = plan(
        snapshot(tenant(nominal=amounts(8, 8)), node("n1", amounts(8, 8, h100=8)), waiting("j", amounts(1, 1, h100=1)))
    )
    (refusal,) = decided.refusals
    assert refusal.explanation.facts["reason"] == "quota"


def test_a_quota_lowered_below_use_admits_nothing_more_and_takes_nothing_away() -> None:
    held = tenant(nominal=amounts(4, 64), used=amounts(8, 8))
    decided = plan(snapshot(held, node("n1", amounts(64, 64)), waiting("job-a", amounts(1))))
    assert decided.grants == ()
    assert decided.explanations["job-a"].code == "quota_exceeded"
    assert decided.explanations["job-a"].facts["used"] == 8000


def test_grants_of_one_cycle_count_against_the_quota() -> None:
    seen = snapshot(
        tenant(nominal=amounts(2, 64)),
        node("n1", amounts(64, 64)),
        *[waiting(f"job-{n}", amounts(1)) for n in range(3)],
    )
    decided = plan(seen)
    assert granted(decided) == ["job-0", "job-1"]
    assert decided.explanations["job-2"].code == "quota_exceeded"


def test_a_workload_over_quota_blocks_no_other_tenant() -> None:
    seen = snapshot(
        tenant("vision", amounts(8, 64), used=amounts(8, 8)),
        tenant("speech"),
        node("n1", amounts(64, 64)),
        waiting("job-a", amounts(4), queued_ms=1),
        waiting("job-b", amounts(4), tenant="speech"),
    )
    assert granted(plan(seen)) == ["job-b"]


def test_who_waited_long_for_quota_is_not_overtaken_by_later_ones_of_the_same_tenant() -> None:
    held = tenant(nominal=amounts(8, 64), used=amounts(7, 7))
    large, small = waiting("job-large", amounts(8), queued_ms=NOW_MS - 11 * MINUTE_MS), waiting("job-small", amounts(1))
    seen = snapshot(held, node("n1", amounts(64, 64)), large, small)
    decided = plan(seen)
    assert granted(decided) == []
    assert decided.explanations["job-small"].code == "behind_others"
    assert decided.explanations["job-small"].facts["first"] == "job-large"
    patient = replace(seen, queue=(replace(large, queued_ms=NOW_MS - 2 * MINUTE_MS), small))
    assert granted(plan(patient)) == ["job-small"]


def test_a_suspended_tenant_gets_nothing_and_blocks_nobody() -> None:
    seen = snapshot(
        tenant("vision", suspended=True),
        tenant("speech"),
        node("n1", amounts(1)),
        waiting("job-a", amounts(1), queued_ms=1),
        waiting("job-b", amounts(1), tenant="speech"),
    )
    decided = plan(seen)
    assert granted(decided) == ["job-b"]
    assert decided.explanations["job-a"].code == "tenant_suspended"


# Reservation and backfill.


def test_a_large_gang_is_not_starved_by_a_stream_of_small_jobs() -> None:
    busy = node("n1", amounts(64, 64, h100=8), amounts(7, 7, h100=7))
    large = waiting("job-large", amounts(8, 8, h100=8), queued_ms=1)
    decided = plan(snapshot(busy, large, *[waiting(f"job-{n}", amounts(1, 1, h100=1)) for n in range(3)]))
    assert granted(decided) == []
    assert decided.explanations["job-large"].code == "waiting_for_capacity"
    assert {decided.explanations[f"job-{n}"].code for n in range(3)} == {"behind_others"}


def test_small_jobs_run_on_what_the_large_gang_cannot_use() -> None:
    busy = node("n1", amounts(64, 64, h100=8), amounts(7, 7, h100=7))
    large = waiting("job-large", amounts(8, 8, h100=8), queued_ms=1)
    seen = snapshot(busy, node("n2", amounts(1, 1, a10=1)), large, waiting("job-small", amounts(1, 1, a10=1)))
    assert granted(plan(seen)) == ["job-small"]


def test_an_impossible_head_of_the_queue_is_refused_and_blocks_nobody() -> None:
    rack = node("n1", amounts(64, 64, h100=8))
    nine = waiting("job-nine", gang(9, amounts(1, 1, h100=1)), queued_ms=1)
    decided = plan(snapshot(rack, nine, waiting("job-one", amounts(1, 1, h100=1))))
    assert granted(decided) == ["job-one"]
    (refusal,) = decided.refusals
    assert (refusal.workload_id, refusal.explanation.code) == ("job-nine", "infeasible")
    assert refusal.explanation.facts["nearest"] == {"workers": 8}


def test_a_gang_that_must_wait_for_a_service_to_end_blocks_nobody() -> None:
    held = amounts(1, 1, h100=1)
    rack = replace(node("n1", amounts(64, 64, h100=8), held), lasting=held, lasting_free_devices=(0, *[1000] * 7))
    large = waiting("job-large", amounts(8, 8, h100=8), queued_ms=1)
    assert granted(plan(snapshot(rack, large, waiting("job-one", amounts(1, 1, h100=1))))) == ["job-one"]


def test_the_reservation_is_made_on_the_nodes_that_are_least_used() -> None:
    full = node("n1", amounts(8, 8), amounts(8, 8))
    nearly = node("n2", amounts(8, 8), amounts(1))
    seen = snapshot(full, nearly, waiting("job-large", amounts(8), queued_ms=1), waiting("job-small", amounts(1)))
    decided = plan(seen)
    assert granted(decided) == []
    assert decided.explanations["job-small"].code == "behind_others"


def test_an_explanation_gives_the_place_in_the_queue_and_names_only_ones_own() -> None:
    seen = snapshot(
        tenant("vision"),
        tenant("speech"),
        node("n1", amounts(1), amounts(1)),
        waiting("job-a", amounts(1), queued_ms=1),
        waiting("job-b", amounts(1), queued_ms=2, tenant="speech"),
        waiting("job-c", amounts(1), queued_ms=3),
    )
    facts = plan(seen).explanations["job-c"].facts
    assert (facts["position"], facts["ahead"], facts["ahead_of_other_tenants"]) == (3, ["job-a"], 1)
    assert "job-b" not in str(facts)


def test_a_clock_that_went_back_neither_crashes_nor_bursts_early() -> None:
    later = waiting("job-a", amounts(1), queued_ms=NOW_MS + 60 * MINUTE_MS, max_wait_ms=MINUTE_MS)
    seen = snapshot(node("n1", amounts(1), amounts(1)), offering("cloud", amounts(1)), later)
    decided = plan(seen)
    assert decided.launches == ()
    assert decided.explanations["job-a"].facts["burst_ms"] == NOW_MS + 61 * MINUTE_MS
