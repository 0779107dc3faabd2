"""The wall clock is put forward or back an hour: nothing ends by it, and nothing waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.invariants import check, check_quiet
from support.world import World

HOUR = 3600


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
