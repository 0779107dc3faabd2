"""Whatever is observed, a plan exists and asks for no forbidden step."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from polyray.core.lifecycle import CLUSTER, WORKLOAD, ClusterState, WorkloadState
from polyray.core.spec import Kind, Retry
from polyray.jobs import plan as workload_plan
from polyray.tenants import cluster_plan
from polyray.tenants.cluster_plan import Loss, Member
from polyray.tenants.slices import DriverStatus, GangState, SliceState


@st.composite
def clusters(draw: st.DrawFn) -> cluster_plan.Observed:
    members = []
    for rank in range(draw(st.integers(1, 4))):
        generation = draw(st.integers(0, 6))
        members.append(
            Member(
                rank=rank,
                generation=generation,
                node_alive=draw(st.booleans()),
                short_starts=draw(st.integers(0, generation)),
                seen=draw(st.none() | st.sampled_from(SliceState)),
                seen_generation=draw(st.integers(0, generation)),
            )
        )
    return cluster_plan.Observed(
        state=draw(st.sampled_from(ClusterState)),
        stop_requested=draw(st.booleans()),
        gang=draw(st.sampled_from(GangState)),
        gang_detail="",
        members=tuple(members),
        missing_seconds=draw(st.floats(0, 100)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> workload_plan.Observed:
    driver = st.builds(
        DriverStatus,
        driver_id=st.just("d"),
        running=st.booleans(),
        exit_code=st.none() | st.integers(-15, 255),
    )
    state = draw(st.sampled_from(WorkloadState))
    granted = state in {WorkloadState.STARTING, WorkloadState.RUNNING}
    cluster = st.sampled_from(ClusterState)
    return workload_plan.Observed(
        kind=draw(st.sampled_from(Kind)),
        state=state,
        stop_requested=draw(st.booleans()),
        retry=Retry(limit=draw(st.integers(0, 3))),
        retries=draw(st.integers(0, 4)),
        cluster=draw(cluster if granted else st.none() | cluster),
        cluster_unwanted=draw(st.booleans()),
        head_down=draw(st.booleans()),
        loss=draw(st.none() | st.sampled_from(Loss)),
        driver=draw(st.none() | driver),
        healthy=draw(st.booleans()),
        overtime_ms=draw(st.integers(-10, 10)),
    )


@given(clusters())
def test_a_cluster_plan_takes_only_steps_that_its_table_has(observed: cluster_plan.Observed) -> None:
    for action in cluster_plan.plan(observed):
        if isinstance(action, cluster_plan.Move):
            assert (observed.state, action.state) in CLUSTER.steps


@given(clusters())
def test_a_cluster_is_planned_the_same_twice(observed: cluster_plan.Observed) -> None:
    assert cluster_plan.plan(observed) == cluster_plan.plan(replace(observed))


@given(clusters())
def test_no_more_than_the_allowed_number_of_starts_is_ever_asked_for(observed: cluster_plan.Observed) -> None:
    for action in cluster_plan.plan(observed):
        if isinstance(action, cluster_plan.NewSlice):
            assert observed.members[action.rank].short_starts < cluster_plan.MAX_SHORT_STARTS


@given(workloads())
def test_a_workload_plan_takes_only_steps_that_its_table_has(observed: workload_plan.Observed) -> None:
    for action in workload_plan.plan(observed):
        if isinstance(action, workload_plan.Move):
            assert (observed.state, action.state) in WORKLOAD.steps


@given(workloads())
def test_an_ended_workload_never_moves(observed: workload_plan.Observed) -> None:
    if observed.state in WORKLOAD.terminal:
        assert not any(isinstance(action, workload_plan.Move) for action in workload_plan.plan(observed))


@given(workloads())
def test_a_workload_never_goes_back_to_the_queue_while_its_cluster_lives(observed: workload_plan.Observed) -> None:
    for action in workload_plan.plan(observed):
        if isinstance(action, workload_plan.Move) and action.state is WorkloadState.QUEUED:
            assert observed.cluster is ClusterState.GONE
