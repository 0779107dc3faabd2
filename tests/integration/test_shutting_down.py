"""The platform is ended on purpose with work in every state, and started again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from polyray.control.shutdown import drain
from polyray.core.clock import VirtualClock
from support.invariants import check
from support.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "state")
    world.settle(5)
    monkeypatch.setattr(threading.Event, "wait", lambda *_: world.settle(0.5))
    return world


def shut_down(world: World) -> bool:
    """Drain as the control plane does: its reconcilers run on, all but the broker."""
    nodes, _, *others = world.reconcilers
    world.reconcilers = (nodes, *others)
    assert isinstance(world.clock, VirtualClock)
    return drain(world.store, world.clock, nodes, lambda kind, key: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, 0.5, 1, 2, 4, 8])
def test_what_was_under_way_runs_again_at_the_next_start_and_loses_no_retry(world: World, seconds: float) -> None:
    job, session = world.submit(workers=2), world.submit(kind="session", name="default", resources={"cpu": 1})
    world.settle(seconds)
    assert shut_down(world)
    assert (world.cloud.running, world.fabric.empty, world.live_leases()) == ((), True, [])
    assert {world.workload(each).state for each in (job, session)} == {"queued"}
    world.restart()
    world.settle(20)
    check(world)
    assert {world.workload(each).state for each in (job, session)} == {"running"}
    assert {world.workload(each).retries for each in (job, session)} == {0}


def test_a_job_that_ended_well_as_the_shutdown_began_is_not_run_again(world: World) -> None:
    job = world.submit()
    world.settle(5)
    world.end_program(job)
    world.observer.refresh()
    assert shut_down(world)
    assert (world.workload(job).state, world.workload(job).attempt) == ("succeeded", 1)


def test_a_job_that_ended_well_while_its_cluster_was_ending_is_not_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()
    world.settle(5)

    def ends_meanwhile(*_: object) -> None:
        world.settle(0.5)
        if world.cluster(job).state == "stopping" and world.fabric.running_drivers:
            world.end_program(job)

    monkeypatch.setattr(threading.Event, "wait", ends_meanwhile)
    assert shut_down(world)
    assert (world.workload(job).state, world.workload(job).attempt) == ("succeeded", 1)


def test_a_node_that_a_cycle_under_way_still_asked_for_goes_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = world.reconcilers[1]
    asked = iter([broker])

    def late(*_: object) -> None:
        for each in asked:
            each.reconcile("cycle")
        world.settle(0.5)

    world.submit(capacity=["on_demand"], resources={"cpu": 1, "memory": "1GiB"})
    monkeypatch.setattr(threading.Event, "wait", late)
    assert shut_down(world)
    assert world.cloud.running == ()
    assert [node.state for node in world.nodes() if node.pool == "cloud"] == ["terminated"]
