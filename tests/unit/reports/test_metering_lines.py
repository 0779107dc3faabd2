"""Who pays for which part of a node."""

from __future__ import annotations

from polyray.core.money import HOUR_MS
from polyray.core.resources import Resources
from polyray.core.spec import CapacityType
from polyray.reports.metering import PLATFORM, LeaseInterval, Line, LineKind, NodeInterval, Payer, bill, month_bounds
from support.capacity import GIB

DAY_MS = 24 * HOUR_MS
START_MS = 1_790_000_000_000
MACHINE = Resources(cpu=8000, memory=32 * GIB, h100=8000)
OWNER = Payer("vision", "default", "job-a")
OTHER = Payer("speech", "default", "job-b")


def cloud(**more: object) -> NodeInterval:
    values: dict[str, object] = {
        "capacity_type": CapacityType.ON_DEMAND,
        "start_ms": START_MS,
        "end_ms": START_MS + HOUR_MS,
        "ready_ms": START_MS,
        "launched_for": OWNER,
        **more,
    }
    return NodeInterval("nod-1", "cloud", usd_micros_per_hour=1_000_000, resources=MACHINE, **values)  # type: ignore[arg-type]


def rack(**more: object) -> NodeInterval:
    return cloud(capacity_type=CapacityType.RESERVED, launched_for=PLATFORM, **more)


def lease(payer: Payer, resources: Resources, start: float = 0, end: float = 1) -> LeaseInterval:
    """Return a lease from and to a part of the first hour."""
    times = (START_MS + round(start * HOUR_MS), START_MS + round(end * HOUR_MS))
    return LeaseInterval(f"lea-{payer.workload_id}-{start}", "nod-1", payer, resources, *times)


def told(lines: tuple[Line, ...]) -> list[tuple[str, str, int]]:
    return [(line.kind.value, line.payer.workload_id, line.usd_micros) for line in lines]


def test_a_lease_pays_by_its_dominant_share_and_the_rest_is_idle() -> None:
    quarter_of_gpus = Resources(cpu=1000, memory=GIB, h100=2000)
    assert told(bill([rack()], [lease(OTHER, quarter_of_gpus)])) == [("lease", "job-b", 250_000), ("idle", "", 750_000)]


def test_boot_and_idle_time_of_a_cloud_node_are_booked_to_who_it_was_launched_for() -> None:
    half = START_MS + HOUR_MS // 2
    lines = bill([cloud(ready_ms=half)], [lease(OWNER, MACHINE, 0.5, 0.75)])
    assert told(lines) == [("boot", "job-a", 500_000), ("lease", "job-a", 250_000), ("idle", "job-a", 250_000)]


def test_a_node_that_never_joined_is_all_boot() -> None:
    assert told(bill([cloud(ready_ms=None)], [])) == [("boot", "job-a", 1_000_000)]


def test_anothers_lease_on_a_cloud_node_is_paid_by_the_other() -> None:
    lines = bill([cloud()], [lease(OTHER, Resources(cpu=4000))])
    assert told(lines) == [("lease", "job-b", 500_000), ("idle", "job-a", 500_000)]


def test_shares_that_claim_more_than_the_node_are_scaled_to_the_whole_of_it() -> None:
    lines = bill([rack()], [lease(OWNER, Resources(cpu=8000)), lease(OTHER, Resources(memory=32 * GIB))])
    assert told(lines) == [("lease", "job-a", 500_000), ("lease", "job-b", 500_000)]


def test_a_third_of_a_cent_is_lost_to_nobody() -> None:
    thirds = [lease(Payer("vision", "p", f"job-{n}"), Resources(cpu=1000)) for n in range(3)]
    node = NodeInterval(
        "nod-1", "rack", CapacityType.RESERVED, 100, Resources(cpu=3000), START_MS, START_MS + HOUR_MS, START_MS
    )
    assert [line.usd_micros for line in bill([node], thirds)] == [34, 33, 33]


def test_a_lease_that_outlives_its_node_pays_only_for_what_the_provider_bills() -> None:
    assert told(bill([cloud()], [lease(OWNER, MACHINE, -1, 5)])) == [("lease", "job-a", 1_000_000)]


def test_an_interval_that_ends_before_it_begins_costs_nothing() -> None:
    assert bill([cloud(end_ms=START_MS - 1)], [lease(OWNER, MACHINE)]) == ()


def test_a_month_is_half_open_and_ends_where_the_next_begins() -> None:
    start, end = month_bounds("2026-12")
    assert end == month_bounds("2027-01")[0]
    assert end - start == 31 * DAY_MS
    lines = bill([rack(start_ms=end - HOUR_MS, end_ms=end + HOUR_MS)], [])
    assert [(line.end_ms, line.usd_micros) for line in lines] == [(end, 1_000_000), (end + HOUR_MS, 1_000_000)]
    assert all(line.kind is LineKind.IDLE for line in lines)
