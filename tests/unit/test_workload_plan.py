"""What the platform does next about a workload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyray.core.lifecycle import ClusterState, WorkloadState
from polyray.core.spec import Kind, Retry, RetryReason
from polyray.jobs.plan import (
    STOP_GRACE_SECONDS,
    STOP_LIMIT_SECONDS,
    EndCluster,
    Move,
    Observed,
    StartDriver,
    StopDriver,
    Wait,
    plan,
)
from polyray.tenants.cluster_plan import Loss
from polyray.tenants.slices import DriverStatus

JOB = Observed(
    kind=Kind.JOB,
    state=WorkloadState.RUNNING,
    stop_requested=False,
    retry=Retry(limit=1),
    retries=0,
    cluster=ClusterState.READY,
)
SERVICE = replace(JOB, kind=Kind.SERVICE)
RUNS = DriverStatus(driver_id="d", running=True)
ENDED_WELL = DriverStatus(driver_id="d", running=False, exit_code=0)
FAILED = DriverStatus(driver_id="d", running=False, exit_code=3)
GONE = ClusterState.GONE


def only_move(observed: Observed) -> Move:
    (move,) = plan(observed)
    assert isinstance(move, Move)
    return move


def test_a_job_starts_its_program_once_its_cluster_is_ready() -> None:
    starting = replace(JOB, state=WorkloadState.STARTING, cluster=ClusterState.STARTING_HEAD)
    assert plan(starting) == (Wait(),)
    assert plan(replace(starting, cluster=ClusterState.READY)) == (StartDriver(),)
    assert only_move(replace(starting, cluster=ClusterState.READY, driver=RUNS)).state is WorkloadState.RUNNING


def test_nothing_is_asked_of_a_head_that_the_core_does_not_show() -> None:
    assert plan(replace(JOB, head_unseen=True)) == (Wait(),)


def test_the_exit_code_decides_how_a_job_ends() -> None:
    assert only_move(replace(JOB, driver=ENDED_WELL)) == Move(WorkloadState.SUCCEEDED, exit_code=0)
    failed = only_move(replace(JOB, driver=FAILED))
    assert (failed.state, failed.exit_code) == (WorkloadState.FAILED, 3)
    assert "exit code 3" in failed.reason


def test_a_program_killed_together_with_its_head_is_a_lost_cluster_and_not_a_failed_job() -> None:
    killed = DriverStatus(driver_id="d", running=False, exit_code=-9)
    assert plan(replace(JOB, driver=killed, head_down=True)) == (Wait(),)
    assert plan(replace(JOB, driver=killed, cluster=ClusterState.STOPPING)) == (Wait(),)
    assert plan(replace(JOB, driver=killed, cluster_unwanted=True)) == (Wait(),)


def test_a_job_that_ended_well_beside_a_dying_head_has_succeeded() -> None:
    assert only_move(replace(JOB, driver=ENDED_WELL, head_down=True)).state is WorkloadState.SUCCEEDED


@pytest.mark.parametrize(
    "later",
    [
        {"stop_requested": True},
        {"cluster_unwanted": True, "loss": Loss.SHUTDOWN},
        {"cluster": ClusterState.LOST, "loss": Loss.NODE_LOST},
        {"cluster": ClusterState.STOPPING, "cluster_unwanted": True, "loss": Loss.SHUTDOWN},
    ],
)
def test_a_job_that_ended_well_has_succeeded_whatever_comes_after(later: dict[str, object]) -> None:
    done = replace(JOB, driver=ENDED_WELL, **later)  # type: ignore[arg-type]
    assert only_move(done) == Move(WorkloadState.SUCCEEDED, exit_code=0)


def test_a_program_that_answers_a_stop_with_a_good_exit_was_stopped() -> None:
    stopping = replace(JOB, state=WorkloadState.STOPPING, stop_requested=True, driver=ENDED_WELL)
    assert only_move(stopping).state is WorkloadState.STOPPED


def test_a_lost_attempt_waits_until_nothing_of_it_is_left() -> None:
    lost = replace(JOB, cluster=ClusterState.LOST, loss=Loss.CLUSTER_LOST, cluster_reason="its head died")
    assert plan(lost) == (Wait(),)
    move = only_move(replace(lost, cluster=GONE))
    assert (move.state, move.counts) == (WorkloadState.QUEUED, True)
    assert "its head died" in move.reason


def test_retries_are_used_up() -> None:
    move = only_move(replace(JOB, cluster=GONE, loss=Loss.NODE_LOST, retries=1))
    assert move.state is WorkloadState.FAILED
    assert "retries are used up" in move.reason


def test_a_loss_that_the_policy_does_not_cover_fails_the_job() -> None:
    strict = replace(JOB, retry=Retry(on=(RetryReason.PREEMPTED,)), cluster=GONE, loss=Loss.NODE_LOST)
    assert only_move(strict).state is WorkloadState.FAILED


@pytest.mark.parametrize("loss", [Loss.GRANT_REJECTED, Loss.SHUTDOWN])
def test_what_the_platform_did_costs_no_retry(loss: Loss) -> None:
    move = only_move(replace(JOB, cluster=GONE, loss=loss, retries=1))
    assert (move.state, move.counts) == (WorkloadState.QUEUED, False)


def test_a_session_runs_when_its_cluster_does_and_has_no_program() -> None:
    session = replace(JOB, kind=Kind.SESSION, state=WorkloadState.STARTING)
    assert only_move(session).state is WorkloadState.RUNNING
    assert plan(replace(session, state=WorkloadState.RUNNING)) == ()


def test_a_service_runs_once_it_answers_its_health_check() -> None:
    starting = replace(SERVICE, state=WorkloadState.STARTING, driver=RUNS)
    assert plan(starting) == (Wait(),)
    assert only_move(replace(starting, healthy=True)).state is WorkloadState.RUNNING


def test_a_service_that_cannot_start_fails_and_one_that_dies_later_comes_back() -> None:
    assert only_move(replace(SERVICE, state=WorkloadState.STARTING, driver=FAILED)).state is WorkloadState.FAILED
    assert plan(replace(SERVICE, driver=FAILED)) == (EndCluster(),)
    assert only_move(replace(SERVICE, cluster=GONE, retries=99)).state is WorkloadState.QUEUED


def test_a_stop_ends_the_program_first_and_then_the_workload() -> None:
    assert only_move(replace(JOB, stop_requested=True, driver=RUNS)).state is WorkloadState.STOPPING
    stopping = replace(JOB, state=WorkloadState.STOPPING, stop_requested=True, driver=RUNS)
    assert plan(stopping) == (StopDriver(), Wait())
    assert only_move(replace(stopping, driver=FAILED)).state is WorkloadState.STOPPED
    assert only_move(replace(stopping, cluster=GONE)).state is WorkloadState.STOPPED


def test_a_program_of_which_nothing_is_heard_after_its_grace_is_ended_with_its_cluster() -> None:
    stopping = replace(JOB, state=WorkloadState.STOPPING, stop_requested=True, driver=RUNS)
    assert plan(replace(stopping, stop_asked_seconds=STOP_GRACE_SECONDS)) == (StopDriver(), Wait())
    assert plan(replace(stopping, stop_asked_seconds=STOP_LIMIT_SECONDS)) == (EndCluster(),)


def test_a_job_that_overruns_its_duration_fails_with_that_reason() -> None:
    move = only_move(replace(JOB, driver=RUNS, overtime_ms=1))
    assert move.state is WorkloadState.FAILED
    assert "max_duration" in move.reason


@pytest.mark.parametrize("state", [WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED])
def test_an_ended_workload_only_ends_its_cluster(state: WorkloadState) -> None:
    assert plan(replace(JOB, state=state)) == (EndCluster(),)
    assert plan(replace(JOB, state=state, cluster=GONE, stop_requested=True, driver=RUNS)) == ()
