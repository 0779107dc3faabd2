"""Kill -9 of whatever holds a slice: no process and no directory is left, and the platform says what happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from polyray.autoscaler.provider import InstanceState
from polyray.tenants.slices import Gang, GangState, SliceSpec, SliceState
from support.processes import argv_of, lives, parent_of
from support.real_core import RealCore, kill_tree, real_core
from support.wait import until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCore]:
    with real_core(tmp_path_factory.mktemp("f") / "s") as running:
        yield running


@pytest.fixture
def node(core: RealCore) -> str:
    """One node for all tests that let it live."""
    for instance in core.provider.list():
        if instance.state is InstanceState.RUNNING:
            return instance.intent_id
    node_id = core.launch_node()
    core.wait_joined(node_id)
    return node_id


@pytest.fixture
def held(core: RealCore, node: str, tmp_path: Path) -> Iterator[tuple[Gang, SliceSpec]]:
    gang = core.gang(node)
    core.hold(gang)
    spec = core.head_spec(gang, tmp_path)
    core.fabric.start_slice(spec)
    core.wait_state(spec.lease_id, SliceState.READY)
    assert core.slice_directories()
    yield gang, spec
    core.release(gang.cluster_id)


def keeper_of(core: RealCore) -> psutil.Process:
    """Return the one slice's keeper: its child is the init, whose children are Ray and the drivers."""
    return next(
        process
        for process in psutil.process_iter(["cmdline"])
        if any("slice_init" in text for text in process.info["cmdline"] or [])
        and any(str(core.settings.ray_dir) in text for text in process.info["cmdline"])
        and not any("slice_init" in text for text in argv_of(parent_of(process)))
    )


def slice_processes(keeper: psutil.Process) -> list[psutil.Process]:
    found = [keeper, *keeper.children(recursive=True)]
    assert len(found) > 5, "a running slice"
    return found


def wait_nothing_left(core: RealCore, processes: list[psutil.Process]) -> None:
    until(lambda: not any(lives(process) for process in processes), seconds=30, what="its end")
    until(lambda: core.slice_directories() == [], seconds=10, what="its directory to go")


def test_a_released_slice_leaves_nothing(core: RealCore, held: tuple[Gang, SliceSpec]) -> None:
    processes = slice_processes(keeper_of(core))
    core.release(held[0].cluster_id)
    wait_nothing_left(core, processes)


def test_a_killed_init_is_told_and_leaves_nothing(core: RealCore, held: tuple[Gang, SliceSpec]) -> None:
    keeper = keeper_of(core)
    processes = slice_processes(keeper)
    keeper.children()[0].kill()
    wait_nothing_left(core, processes)
    core.wait_state(held[1].lease_id, SliceState.EXITED)


def test_a_killed_keeper_is_told_and_leaves_nothing(core: RealCore, held: tuple[Gang, SliceSpec]) -> None:
    keeper = keeper_of(core)
    processes = slice_processes(keeper)
    keeper.kill()
    wait_nothing_left(core, processes)
    assert "keeper" in core.wait_state(held[1].lease_id, SliceState.EXITED).detail


def test_a_killed_raylet_of_the_slice_is_told_and_leaves_nothing(core: RealCore, held: tuple[Gang, SliceSpec]) -> None:
    processes = slice_processes(keeper_of(core))
    next(p for p in processes if p.name() == "raylet").kill()
    wait_nothing_left(core, processes)
    assert "exit code" in core.wait_state(held[1].lease_id, SliceState.EXITED).detail


def test_a_killed_lease_actor_takes_its_slice_along(core: RealCore, held: tuple[Gang, SliceSpec]) -> None:
    keeper = keeper_of(core)
    processes = slice_processes(keeper)
    os.kill(keeper.ppid(), signal.SIGKILL)
    wait_nothing_left(core, processes)
    until(lambda: core.status(held[1].lease_id) is None, seconds=20, what="the lease to be gone")


def test_a_killed_node_takes_its_slices_along_and_is_told(
    core: RealCore, held: tuple[Gang, SliceSpec], node: str
) -> None:
    processes = slice_processes(keeper_of(core))
    ray_start = psutil.Process(core.node_pid(node)).children()[0]
    next(process for process in ray_start.children() if process.name() == "raylet").kill()
    wait_nothing_left(core, processes)
    until(lambda: _state(core, node) is InstanceState.TERMINATED, seconds=20)
    until(lambda: _gang_state(core, held[0]) is GangState.REJECTED, seconds=60, every=0.2)


def test_a_node_whose_own_parent_is_killed_leaves_nothing(
    core: RealCore, held: tuple[Gang, SliceSpec], node: str
) -> None:
    parent = psutil.Process(core.node_pid(node))
    processes = [*slice_processes(keeper_of(core)), *parent.children(recursive=True)]
    parent.kill()
    until(lambda: _state(core, node) is InstanceState.TERMINATED, seconds=20)
    wait_nothing_left(core, processes)


def test_a_head_that_is_killed_comes_back_to_the_same_leases(core: RealCore, held: tuple[Gang, SliceSpec]) -> None:
    gang, spec = held
    keeper = keeper_of(core)
    assert core.head is not None
    assert core.server is not None
    kill_tree(core.head.pid)
    core.head.wait()
    # The fabric is a driver of that head: it ends, and its supervisor starts it again.
    assert core.server.wait(60) != 0
    core.start_head()
    core.start_server()
    core.wait_answering()
    until(lambda: core.status(spec.lease_id) is not None, seconds=60, every=0.2, what="the lease to be seen again")
    status = core.status(spec.lease_id)
    assert status is not None
    assert status.state is SliceState.READY
    assert keeper.is_running(), "the slice never stopped"
    assert core.fabric.grant(gang).state is GangState.HELD


def _state(core: RealCore, node: str) -> InstanceState:
    return next(instance.state for instance in core.provider.list() if instance.intent_id == node)


def _gang_state(core: RealCore, gang: Gang) -> GangState | None:
    return next((g.state for g in core.fabric.gangs() if g.cluster_id == gang.cluster_id), None)
