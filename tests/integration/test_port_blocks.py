"""Blocks of ports are few: gangs take theirs whole, and what was given back rests before another gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyray.core.settings import Settings
from polyray.tenants.ports import QUARANTINE_MS
from support.invariants import check
from support.world import PLATFORM, World

BLOCKS = 4
SMALL = {"cpu": 0.5, "memory": "512MiB"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    pools = {"rack": {**PLATFORM["pools"]["rack"], "resources": {"cpu": 6, "memory": "16GiB"}}}  # type: ignore[index]
    world = World(tmp_path / "state", {**PLATFORM, "pools": pools})
    world.settings = Settings(
        state_dir=tmp_path / "state", slice_ports_start=24_000, slice_ports_end=24_000 + BLOCKS * 100
    )
    world.restart()
    world.settle(5)
    return world


def test_two_gangs_that_both_want_most_of_the_ports_run_one_after_the_other(world: World) -> None:
    first, second = (world.submit(workers=2, resources=SMALL) for _ in range(2))
    world.settle(5)
    states = {job: world.workload(job).state for job in (first, second)}
    assert sorted(states.values()) == ["running", "starting"]
    (runs,) = [job for job, state in states.items() if state == "running"]
    world.end_program(runs)
    world.settle(QUARANTINE_MS / 1000 + 40, step_seconds=5)
    check(world)
    assert {world.workload(job).state for job in (first, second)} == {"succeeded", "running"}


def test_a_block_that_was_given_back_reaches_nobody_else_while_it_rests(world: World) -> None:
    before = world.submit(kind="session", name="a", resources=SMALL)
    world.settle(5)
    (old,) = [spec.address for spec, _ in world.fabric.started]
    world.stop(before)
    world.settle(5)
    after = world.submit(tenant="speech", kind="session", name="b", resources=SMALL)
    world.settle(5)
    assert world.workload(after).state == "running"
    assert [spec.address for spec, _ in world.fabric.started] != [old]
