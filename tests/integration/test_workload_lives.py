"""Whole lives of workloads, from submit to the last lease, on a core and a cloud in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyray.jobs.waiting import WaitingRows
from polyray.store.tables import Workload
from polyray.tenants.slices import Gang, LeaseSpec
from support.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "state")
    world.settle(5)
    return world


def state(world: World, workload_id: str) -> str:
    return world.workload(workload_id).state


def assert_nothing_left(world: World) -> None:
    assert world.fabric.empty
    assert world.live_leases() == []
    assert world.clusters_left() == []


def test_a_small_job_runs_on_reserved_capacity_and_leaves_nothing(world: World) -> None:
    job = world.submit()
    world.settle(5)
    assert state(world, job) == "running"
    world.end_program(job)
    world.settle(5)
    assert state(world, job) == "succeeded"
    assert world.workload(job).exit_code == 0
    assert_nothing_left(world)
    assert [node.pool for node in world.nodes("ready")] == ["rack"]


def test_a_job_that_does_not_fit_the_rack_bursts_and_the_cloud_node_goes_when_idle(world: World) -> None:
    job = world.submit(workers=2)
    world.settle(1)
    assert state(world, job) == "queued"
    explanation = world.workload(job).explanation
    assert explanation is not None
    assert explanation["code"] == "waiting_for_node"
    world.settle(10)
    assert state(world, job) == "running"
    assert sorted(node.pool for node in world.nodes("ready")) == ["cloud", "rack"]
    world.end_program(job)
    world.settle(40, step_seconds=1)
    assert_nothing_left(world)
    cloud = next(node for node in world.nodes() if node.pool == "cloud")
    assert cloud.state == "terminated"
    assert cloud.billed_from_ms is not None
    assert cloud.billed_to_ms is not None
    assert cloud.billed_to_ms > cloud.billed_from_ms


def test_a_killed_worker_slice_is_started_again_while_the_program_runs_on(world: World) -> None:
    job = world.submit(workers=2)
    world.settle(12)
    before = world.lease(job, 2)
    world.kill_slice(job, 2)
    world.settle(5)
    after = world.lease(job, 2)
    assert (after.lease_id, after.generation) == (before.lease_id, before.generation + 1)
    assert (state(world, job), world.workload(job).attempt) == ("running", 1)


def test_a_dead_head_starts_a_new_attempt_after_the_old_one_is_gone(world: World) -> None:
    job = world.submit()
    world.settle(5)
    first = world.cluster(job)
    world.kill_slice(job, 0)
    world.settle(10)
    second = world.cluster(job)
    assert second.cluster_id != first.cluster_id
    assert (state(world, job), world.workload(job).attempt, world.workload(job).retries) == ("running", 2, 1)
    with world.store.read() as session:
        ended = session.get_one(type(first), first.cluster_id).ended_ms
    assert ended is not None
    assert ended <= second.created_ms


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_whose_lease_holder_died_runs_again_well_within_a_minute(world: World, rank: int) -> None:
    job = world.submit(workers=2)
    world.settle(15)
    assert state(world, job) == "running"
    world.fabric.end_lease(world.lease(job, rank).lease_id)
    world.settle(20)
    assert (state(world, job), world.workload(job).attempt, world.workload(job).retries) == ("running", 2, 1)


def test_a_restart_of_the_control_plane_at_any_moment_changes_nothing_for_the_job(tmp_path: Path) -> None:
    def outcome(restart_at: int | None) -> tuple[str, int, int]:
        world = World(tmp_path / f"state-{restart_at}")
        job = world.submit(workers=2)
        for moment in range(24):
            if moment == restart_at:
                world.restart()
            if moment == 18:
                world.end_program(job)
            world.settle(0.5)
        world.settle(6)
        assert_nothing_left(world)
        row = world.workload(job)
        return row.state, row.attempt, row.retries

    undisturbed = outcome(None)
    assert undisturbed == ("succeeded", 1, 0)
    for moment in range(0, 24, 2):
        assert outcome(moment) == undisturbed


def test_a_core_that_does_not_answer_for_minutes_ends_no_lease(world: World) -> None:
    job = world.submit()
    world.settle(5)
    world.fabric.available = False
    world.settle(180, step_seconds=5)
    world.fabric.available = True
    world.settle(5)
    assert (state(world, job), world.workload(job).attempt) == ("running", 1)


def test_what_the_core_holds_for_nobody_is_released(world: World) -> None:
    (rack,) = world.nodes("ready")
    lease = LeaseSpec(lease_id="lea-unknown", epoch=1, node_id=rack.node_id, cpu_milli=1, gpu_milli=0, memory_bytes=1)
    world.fabric.grant(Gang(cluster_id="clu-unknown", leases=(lease,)))
    assert not world.fabric.empty
    world.settle(1)
    assert world.fabric.empty


def test_stopping_a_queued_a_starting_and_a_running_workload_frees_everything(world: World) -> None:
    for seconds in (0.0, 0.5, 1.0, 2.0, 4.0, 6.0):
        job = world.submit(workers=2)
        world.settle(seconds)
        world.stop(job)
        world.settle(24, step_seconds=1)
        assert state(world, job) == "stopped"
        assert_nothing_left(world)
        assert [node.pool for node in world.nodes("ready")] == ["rack"]


def test_a_failing_program_fails_the_job_at_once_with_its_exit_code(world: World) -> None:
    job = world.submit()
    world.settle(5)
    world.end_program(job, exit_code=3)
    world.settle(5)
    row = world.workload(job)
    assert (row.state, row.exit_code, row.attempt) == ("failed", 3, 1)
    assert_nothing_left(world)


def test_a_session_is_routed_while_it_runs_and_unreachable_once_stopped(world: World) -> None:
    session = world.submit(kind="session", name="default")
    world.settle(5)
    assert state(world, session) == "running"
    cluster_id = world.cluster(session).cluster_id
    assert cluster_id in world.gateway.actual()
    world.stop(session)
    world.round()
    assert cluster_id not in world.gateway.actual()


def test_a_service_is_routed_only_once_it_is_healthy(world: World) -> None:
    world.healthy = False
    service = world.submit(kind="service", name="digits", app="serve:app")
    world.settle(5)
    assert state(world, service) == "starting"
    assert world.gateway.actual() == frozenset()
    world.healthy = True
    world.settle(2)
    assert state(world, service) == "running"
    assert world.gateway.actual() == {world.cluster(service).cluster_id}


def test_a_service_that_never_gets_healthy_ends_with_its_max_duration(world: World) -> None:
    world.healthy = False
    service = world.submit(kind="service", name="digits", app="serve:app", max_duration="30s")
    world.settle(20, step_seconds=2)
    assert state(world, service) == "starting"
    world.settle(40, step_seconds=2)
    assert state(world, service) == "failed"
    assert "max_duration" in world.workload(service).state_reason
    assert_nothing_left(world)


@pytest.mark.parametrize("request_", [{"resources": {"cpu": 3}}, {"resources": {"memory": "3GiB"}, "workers": 4}])
def test_what_cannot_run_says_so_and_holds_nothing(world: World, request_: dict[str, Any]) -> None:
    job = world.submit(tenant="speech", **request_)
    world.settle(5)
    row = world.workload(job)
    assert row.state == "failed"
    assert row.explanation is not None
    assert row.explanation["code"] == "infeasible"
    assert_nothing_left(world)


def test_a_lost_cloud_node_brings_the_job_back_on_a_new_one(world: World) -> None:
    job = world.submit(workers=2)
    world.settle(12)
    (cloud,) = [node for node in world.nodes("ready") if node.pool == "cloud"]
    world.cloud.end_instance(cloud.node_id, "spot reclaimed")
    world.settle(90, step_seconds=2)
    row = world.workload(job)
    assert (row.state, row.attempt, row.retries) == ("running", 2, 1)


def test_a_job_that_lost_its_attempt_keeps_its_place_and_waits_anew(world: World) -> None:
    older = world.submit(name="older", resources={"cpu": 2})
    world.settle(5)
    assert state(world, older) == "running"
    younger = []
    for n in range(2):
        younger.append(world.submit(name=f"younger-{n}", resources={"cpu": 2}, capacity=["reserved"]))
        world.settle(5)
    assert [state(world, job) for job in younger] == ["queued", "queued"]
    with world.store.write() as session:
        row = session.get_one(Workload, younger[0])
        row.queued_ms = world.clock.now_ms()  # as after a lost attempt
    with world.store.read() as session:
        first, second = WaitingRows().read(session, world.clock.now_ms())
    assert [first.workload_id, second.workload_id] == younger
    assert first.queued_ms < first.since_ms == world.clock.now_ms()
    assert second.since_ms == second.queued_ms
