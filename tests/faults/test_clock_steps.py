"""The machine's clock is put forward or back, or its time zone changes its hour: no lease and no bill does.

Where the control plane is given a clock that is moved under it (`VirtualClock.step_wall`), nothing ends by it and
nothing waits for it. The platform's own clock (`SteadyClock`) does not let it see the step at all, so bills stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from polyray.core.clock import VirtualClock
from polyray.core.steady_clock import SLEW, SteadyClock
from polyray.reports.costs import Costs, costs_of_month, costs_of_workload
from polyray.reports.metering import month_of
from support.invariants import check, check_quiet
from support.world import World

HOUR = 3600
#: Micro-dollars of both nodes for a second: the controllers look each second, and may see an end one look later.
A_LOOK_LATER = round((0.40 + 1.20) * 1_000_000 / 3600)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "state")
    world.settle(5)
    return world


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_job_runs_for_its_whole_duration_and_no_longer(world: World, step: int) -> None:
    job = world.submit(max_duration="60s")
    world.settle(5)
    world.clock.step_wall(step)
    world.settle(40, step_seconds=5)
    assert world.workload(job).state == "running"
    world.settle(30, step_seconds=5)
    assert world.workload(job).state == "failed"
    assert "max_duration" in world.workload(job).state_reason


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_node_that_boots_goes_on_booting_and_its_bill_is_never_negative(world: World, step: int) -> None:
    job = world.submit(workers=2)
    world.settle(1)
    world.clock.step_wall(step)
    world.settle(10)
    assert world.workload(job).state == "running"
    assert [node.state for node in world.nodes()] == ["ready", "ready"]
    world.end_program(job)
    world.settle(40, step_seconds=2)
    check(world)
    check_quiet(world)


def test_an_offering_that_failed_rests_no_hour_longer(world: World) -> None:
    world.cloud.insufficient.add("cloud")
    job = world.submit(workers=2)
    world.settle(2)
    world.cloud.insufficient.clear()
    world.clock.step_wall(-HOUR)
    world.settle(90, step_seconds=3)
    assert world.workload(job).state == "running"


class PlatformClock(VirtualClock):
    """The platform's clock on a machine whose own can be moved."""

    def __init__(self, kept: Path, now_ms: int = 1_790_000_000_000) -> None:
        super().__init__(now_ms)
        self._steady = SteadyClock(
            kept, wall_ms=super().now_ms, uptime_ms=lambda: self.monotonic() * 1000, boot_id="this boot"
        )

    def now_ms(self) -> int:
        return self._steady.now_ms()


def bill_of_a_burst(directory: Path, *steps: int, now_ms: int = 1_790_000_000_000) -> tuple[Costs, Costs]:
    """Return what a job cost that bursts, and its month, the clock being stepped by so many seconds on the way."""
    directory.mkdir()
    world = World(directory / "state", clock=PlatformClock(directory / "clock.json", now_ms))
    world.settle(5)
    job = world.submit(workers=2)
    for moment in range(6):
        if moment < len(steps):
            world.clock.step_wall(steps[moment])
        world.settle(12, step_seconds=4)
    world.end_program(job)
    world.settle(40, step_seconds=1)
    check(world)
    check_quiet(world)
    assert world.workload(job).state == "succeeded"
    with world.store.read() as session:
        now_ms = world.clock.now_ms()
        return costs_of_workload(session, job, now_ms), costs_of_month(session, month_of(now_ms), now_ms)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """What the burst and its month cost, in micro-dollars, while nobody touches a clock."""
    return amounts(bill_of_a_burst(tmp_path_factory.mktemp("undisturbed") / "a"))


def amounts(bills: tuple[Costs, Costs]) -> list[int]:
    return [bill.usd_micros for bill in bills]


@pytest.mark.parametrize("steps", [(0, HOUR), (0, -HOUR), (HOUR, HOUR, -HOUR), (10 * 365 * 24 * HOUR,)])
def test_a_step_of_the_machines_clock_changes_no_bill_by_more_than_a_hundredth(
    tmp_path: Path, undisturbed: list[int], steps: tuple[int, ...]
) -> None:
    for ours, theirs in zip(amounts(bill_of_a_burst(tmp_path / "a", *steps)), undisturbed, strict=True):
        assert theirs > 0
        assert abs(ours - theirs) <= SLEW * theirs + A_LOOK_LATER


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_step_there_and_back_changes_no_bill(tmp_path: Path, undisturbed: list[int], seconds: int) -> None:
    assert amounts(bill_of_a_burst(tmp_path / "a", 0, 0, seconds, -seconds)) == undisturbed


@pytest.fixture
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("time_zone", "change"),
    [
        ("Europe/Paris", datetime(2026, 3, 29, 1, tzinfo=UTC)),
        ("Europe/Paris", datetime(2026, 10, 25, 1, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ],
    indirect=["time_zone"],
)
def test_summer_time_changes_no_bill(tmp_path: Path, undisturbed: list[int], time_zone: str, change: datetime) -> None:
    began_ms = int(change.timestamp() * 1000) - 30_000
    before, after = (time.localtime(began_ms / 1000 + seconds).tm_gmtoff for seconds in (0, 60))
    assert before != after, f"the hour of {time_zone} changes in the middle"
    assert amounts(bill_of_a_burst(tmp_path / "a", now_ms=began_ms)) == undisturbed
