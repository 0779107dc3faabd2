"""What every core promises the control plane; run on the one in memory and on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polyray.core.errors import Conflict, NotFound
from polyray.tenants.slices import DriverStatus, Gang, GangState, SliceState, SliceStatus
from support.wait import until

from .fabric_worlds import World, driver, fake_world, gang, real_world


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.ray)])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    worlds = {"fake": fake_world, "real": real_world}
    with worlds[request.param](tmp_path_factory.mktemp("f")) as world:
        yield world


@pytest.fixture
def world(shared: World, tmp_path: Path) -> Iterator[World]:
    """One world for all tests (a core takes seconds to start), a run directory and a clean core for each."""
    shared.run_dir = tmp_path
    yield shared
    for held in shared.fabric.gangs():
        release(shared, held.cluster_id)


def hold(world: World, wanted: Gang) -> None:
    until(lambda: world.fabric.grant(wanted).state is GangState.HELD, seconds=60, every=0.1, what="the gang to be held")


def release(world: World, cluster_id: str) -> None:
    until(lambda: world.fabric.release(cluster_id).state is GangState.ABSENT, seconds=40, every=0.1, what="the release")


def status(world: World, lease_id: str) -> SliceStatus | None:
    return next((one for one in world.fabric.slices() if one.lease_id == lease_id), None)


def wait_state(world: World, lease_id: str, state: SliceState, generation: int = 1) -> SliceStatus:
    def reached() -> bool:
        one = status(world, lease_id)
        return one is not None and (one.state, one.generation) == (state, generation)

    until(reached, seconds=90, every=0.1, what=f"the slice to be {state}")
    one = status(world, lease_id)
    assert one is not None
    return one


def driver_of(world: World, lease_id: str) -> DriverStatus | None:
    one = status(world, lease_id)
    return one.driver if one is not None else None


def test_nodes_are_told_by_our_own_ids(world: World) -> None:
    node = next(node for node in world.fabric.nodes() if node.node_id == world.node())
    assert node.alive
    assert node.ray_node_id
    assert node.host


def test_a_gang_is_held_whole_with_an_empty_slice_per_lease(world: World) -> None:
    wanted = gang(world.node(), world.node())
    hold(world, wanted)
    assert [(g.cluster_id, g.state) for g in world.fabric.gangs()] == [(wanted.cluster_id, GangState.HELD)]
    shown = {one.lease_id: one for one in world.fabric.slices()}
    assert set(shown) == {lease.lease_id for lease in wanted.leases}
    for one in shown.values():
        assert (one.cluster_id, one.node_id, one.epoch) == (wanted.cluster_id, world.node(), 1)
        assert (one.state, one.generation, one.driver) == (SliceState.EMPTY, 0, None)


def test_granting_twice_holds_once(world: World) -> None:
    wanted = gang(world.node())
    hold(world, wanted)
    assert world.fabric.grant(wanted).state is GangState.HELD
    assert len(world.fabric.slices()) == 1


def test_a_gang_that_does_not_fit_holds_nothing(world: World) -> None:
    wanted = gang(world.node(), world.node(), cpu_milli=900_000)
    assert world.fabric.grant(wanted).state is GangState.PENDING
    assert world.fabric.slices() == ()
    release(world, wanted.cluster_id)
    assert world.fabric.gangs() == ()


def test_a_released_gang_is_absent_for_good(world: World) -> None:
    wanted = gang(world.node())
    hold(world, wanted)
    release(world, wanted.cluster_id)
    assert world.fabric.gangs() == ()
    assert world.fabric.slices() == ()
    assert world.fabric.release(wanted.cluster_id).state is GangState.ABSENT
    assert world.fabric.grant(wanted).state is GangState.REJECTED


def test_releasing_what_was_never_granted_is_absent(world: World) -> None:
    assert world.fabric.release("clu-000000000000").state is GangState.ABSENT


def test_what_is_asked_of_an_unknown_lease_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        world.fabric.kill_slice("lea-000000000000")
    with pytest.raises(NotFound):
        world.fabric.start_driver("lea-000000000000", driver(world))


def test_the_life_of_a_slice_and_its_driver(world: World) -> None:
    wanted = gang(world.node())
    hold(world, wanted)
    lease_id, first = wanted.leases[0].lease_id, world.head_spec(wanted)
    with pytest.raises(Conflict, match="epoch"):
        world.fabric.start_slice(first.model_copy(update={"epoch": 7}))
    with pytest.raises(Conflict, match="start it when it is ready"):
        world.fabric.start_driver(lease_id, driver(world))

    world.fabric.start_slice(first)
    world.fabric.start_slice(first)
    wait_state(world, lease_id, SliceState.READY)

    # A driver runs once, alone, and its exit code is told.
    world.fabric.start_driver(lease_id, driver(world))
    world.fabric.start_driver(lease_id, driver(world))
    until(lambda: (one := driver_of(world, lease_id)) and one.running)
    with pytest.raises(Conflict, match="stop it first"):
        world.fabric.start_driver(lease_id, driver(world, "job-1.2"))
    world.end_driver(lease_id, 7)
    until(lambda: (one := driver_of(world, lease_id)) and not one.running)
    assert driver_of(world, lease_id) == DriverStatus(driver_id="job-1.1", running=False, exit_code=7)

    # Killed, it says so, and the lease stays.
    world.fabric.kill_slice(lease_id)
    assert "killed" in wait_state(world, lease_id, SliceState.EXITED).detail
    assert [g.state for g in world.fabric.gangs()] == [GangState.HELD]

    # A newer generation starts afresh; the older one is not started again.
    world.fabric.start_slice(world.head_spec(wanted, generation=2))
    wait_state(world, lease_id, SliceState.READY, generation=2)
    world.fabric.start_slice(first)
    again = status(world, lease_id)
    assert again is not None
    assert (again.generation, again.driver) == (2, None)

    # A driver that is asked to end ends.
    world.fabric.start_driver(lease_id, driver(world, "job-1.3"))
    world.fabric.stop_driver(lease_id, "job-1.3", grace_seconds=5)
    until(lambda: (one := driver_of(world, lease_id)) and not one.running)


def test_a_gang_that_loses_a_node_is_rejected_whole(world: World) -> None:
    doomed = world.lose_node()
    wanted = gang(world.node(), doomed)
    hold(world, wanted)
    world.lose(doomed)

    def told() -> bool:
        states = {g.cluster_id: g.state for g in world.fabric.gangs()}
        return states.get(wanted.cluster_id) is GangState.REJECTED

    until(told, seconds=60, every=0.2, what="the core to notice")
    assert not next(node.alive for node in world.fabric.nodes() if node.node_id == doomed)
    release(world, wanted.cluster_id)
    assert world.fabric.slices() == ()
