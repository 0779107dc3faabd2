"""Whose turn it is, between tenants and within one."""

from __future__ import annotations

from dataclasses import replace

from polyray.broker.plan import MOST_KINDS, QUOTA_PATIENCE_MS, plan
from polyray.broker.snapshot import Plan, Waiting
from polyray.broker.turns import in_turn
from polyray.core.resources import ANY_GPU, Resources
from support.capacity import (
    MINUTE_MS,
    NOW_MS,
    amounts,
    cloud_node,
    gang,
    node,
    offering,
    snapshot,
    tenant,
    waiting,
)

EIGHT = amounts(8, 8, h100=8)


def granted(decided: Plan) -> list[str]:
    return [grant.workload_id for grant in decided.grants]


def order(*queue: Waiting, **used: Resources) -> list[str]:
    tenants = [tenant(name, EIGHT, used=used.get(name, Resources())) for name in ("vision", "speech")]
    return [each.workload_id for each in in_turn(queue, tenants)]


def jobs(name: str, count: int, bundle: Resources | None = None, **more: object) -> list[Waiting]:
    asked = amounts(1) if bundle is None else bundle
    return [waiting(f"{name}-{n}", asked, tenant=name, queued_ms=n, **more) for n in range(count)]


def test_a_tenant_that_uses_less_of_its_quota_goes_first_however_late_it_came() -> None:
    late = waiting("job-late", amounts(1), tenant="speech")
    assert order(*jobs("vision", 3), late, vision=amounts(1))[0] == "job-late"


def test_tenants_that_use_the_same_alternate() -> None:
    assert order(*jobs("vision", 2), *jobs("speech", 2)) == ["speech-0", "vision-0", "speech-1", "vision-1"]


def test_who_asks_for_more_waits_for_as_much_longer() -> None:
    seen = order(*jobs("vision", 2, amounts(4, 4)), *jobs("speech", 5))
    assert seen == ["speech-0", "vision-0", "speech-1", "speech-2", "speech-3", "vision-1", "speech-4"]


def test_what_counts_is_the_flavor_of_which_a_tenant_uses_most() -> None:
    seen = order(*jobs("vision", 1), *jobs("speech", 1), vision=amounts(1, 1, h100=6), speech=amounts(5, 5))
    assert seen == ["speech-0", "vision-0"]


def test_any_gpu_counts_against_all_gpus_of_the_quota() -> None:
    seen = order(*jobs("vision", 2, amounts(1, 1, **{ANY_GPU: 4})), *jobs("speech", 4))
    assert seen == ["speech-0", "vision-0", "speech-1", "speech-2", "speech-3", "vision-1"]


def test_a_high_priority_overtakes_its_own_tenant_and_no_other() -> None:
    high = waiting("job-high", amounts(1), tenant="vision", priority=2)
    assert order(*jobs("vision", 2), high, *jobs("speech", 1), vision=amounts(1)) == [
        "speech-0",
        "job-high",
        "vision-0",
        "vision-1",
    ]


def test_the_one_job_of_a_tenant_starts_before_the_ten_thousandth_of_another() -> None:
    queue = [waiting(f"job-{n:05}", amounts(1), queued_ms=n) for n in range(10_000)]
    one = waiting("job-other", amounts(1), tenant="speech")
    seen = snapshot(
        tenant("vision", used=amounts(1)), tenant("speech"), node("n1", amounts(2, 2), amounts(1)), *queue, one
    )
    decided = plan(seen)
    assert granted(decided) == ["job-other"]
    assert len(decided.waits) == 10_000


def test_the_first_gang_of_each_tenant_holds_a_place_of_its_own() -> None:
    """The reservation of one tenant's does not let the small jobs of another starve that other's gang."""
    machines = node("n1", amounts(8, 8), amounts(1)), node("n2", amounts(8, 8), amounts(1))
    seen = snapshot(
        tenant("vision"),
        tenant("speech"),
        *machines,
        waiting("vision-large", amounts(8), queued_ms=1),
        waiting("speech-large", amounts(8), queued_ms=2, tenant="speech"),
        waiting("vision-small", amounts(1), queued_ms=3),
        waiting("speech-small", amounts(1), queued_ms=3, tenant="speech"),
    )
    decided = plan(seen)
    assert granted(decided) == []
    assert {decided.explanations[f"{name}-small"].code for name in ("vision", "speech")} == {"behind_others"}


def test_what_rests_is_not_started_says_until_when_and_blocks_nobody() -> None:
    later = NOW_MS + MINUTE_MS
    rests = waiting("job-rests", amounts(1), queued_ms=1, not_before_ms=later)
    seen = snapshot(node("n1", amounts(1)), rests, waiting("job-b", amounts(1)))
    decided = plan(seen)
    told = decided.explanations["job-rests"]
    assert granted(decided) == ["job-b"]
    assert (told.code, told.facts["until_ms"], told.facts["position"]) == ("paused", later, 1)
    assert "pauses until 2026-09-21" in told.cause
    assert decided.changes_ms == later
    assert granted(plan(replace(seen, now_ms=later))) == ["job-rests"]


def test_a_plan_says_when_time_alone_may_change_it() -> None:
    full, spare = node("n1", amounts(1), amounts(1)), offering("cloud", amounts(1))
    patient = waiting("job-a", amounts(1), max_wait_ms=10 * MINUTE_MS)
    assert plan(snapshot(full, spare, patient)).changes_ms == patient.queued_ms + 10 * MINUTE_MS
    resting = snapshot(full, waiting("job-a", amounts(1)), cooling=(("cloud", NOW_MS + 5),))
    assert plan(resting).changes_ms == NOW_MS + 5
    idle = cloud_node("n2", amounts(1), idle_since_ms=NOW_MS - 1000)
    assert plan(snapshot(idle, idle_seconds=60)).changes_ms == NOW_MS + 59_000
    over = waiting("job-a", amounts(2))
    by_quota = snapshot(tenant(nominal=amounts(2, 8), used=amounts(1)), node("n1", amounts(8, 8), amounts(1)), over)
    assert plan(by_quota).changes_ms == over.queued_ms + QUOTA_PATIENCE_MS
    assert plan(snapshot(full, waiting("job-a", amounts(1)))).changes_ms is None


def test_a_tenant_of_very_many_different_requests_is_looked_at_so_far_and_no_further() -> None:
    many = [waiting(f"job-{n:04}", amounts(1 + n / 1000), queued_ms=n) for n in range(MOST_KINDS + 5)]
    decided = plan(snapshot(node("n1", amounts(64), amounts(64)), *many))
    told = [decided.explanations[each.workload_id] for each in many]
    assert told[MOST_KINDS].facts["kinds"] == MOST_KINDS
    assert {each.code for each in told[MOST_KINDS:]} == {"behind_others"}
    assert "kinds" not in told[MOST_KINDS - 1].facts


def test_gangs_of_like_bundles_are_told_the_same() -> None:
    queue = [waiting(f"job-{n}", gang(2, amounts(4, 4))) for n in range(50)]
    decided = plan(snapshot(node("n1", amounts(64, 64), amounts(64, 64)), *queue))
    assert len({id(explanation) for _, explanation in decided.waits[1:]}) == 1
