"""What the platform does next about a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyray.core.lifecycle import ClusterState
from polyray.tenants.cluster_plan import (
    ENDED_SECONDS,
    GRANT_SECONDS,
    MAX_SHORT_STARTS,
    MISSING_SECONDS,
    Believe,
    HoldGang,
    Loss,
    Member,
    Move,
    NewSlice,
    Observed,
    ReleaseGang,
    SendSlice,
    Wait,
    plan,
)
from polyray.tenants.slices import GangState, SliceState


def member(rank: int, seen: SliceState | None = SliceState.READY, generation: int = 1, **more: object) -> Member:
    given: dict[str, object] = {"node_alive": True, "seen_generation": generation, "short_starts": generation, **more}
    return Member(rank=rank, generation=generation, seen=seen, **given)  # type: ignore[arg-type]


def observed(state: ClusterState, *members: Member, gang: GangState = GangState.HELD, **more: object) -> Observed:
    given: dict[str, object] = {"stop_requested": False, "gang_detail": "", **more}
    return Observed(state=state, gang=gang, members=members or (member(0),), **given)  # type: ignore[arg-type]


EMPTY = {"seen": SliceState.EMPTY, "generation": 0}


def test_a_gang_is_asked_for_until_the_core_holds_it() -> None:
    waiting = observed(ClusterState.GRANTING, member(0, **EMPTY), gang=GangState.PENDING)  # type: ignore[arg-type]
    assert plan(waiting) == (HoldGang(),)
    assert plan(replace(waiting, gang=GangState.HELD)) == (Move(ClusterState.STARTING_HEAD),)


def test_a_rejected_grant_ends_the_cluster_and_says_so() -> None:
    (move,) = plan(observed(ClusterState.GRANTING, gang=GangState.REJECTED, gang_detail="not ready in 30 s"))
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.STOPPING, Loss.GRANT_REJECTED)
    assert "30 s" in move.reason


def test_a_grant_that_the_core_never_finishes_is_given_up() -> None:
    half = observed(ClusterState.GRANTING, gang=GangState.PENDING, gang_detail="1 of 2 leases are held")
    (move,) = plan(replace(half, granted_seconds=GRANT_SECONDS))
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.STOPPING, Loss.GRANT_REJECTED)
    assert "1 of 2 leases" in move.reason
    assert plan(replace(half, gang=GangState.HELD, granted_seconds=GRANT_SECONDS)) == (
        Move(ClusterState.STARTING_HEAD),
    )


def test_the_head_starts_before_any_worker() -> None:
    head, worker = member(0, SliceState.EMPTY, 0), member(1, SliceState.EMPTY, 0)
    assert plan(observed(ClusterState.STARTING_HEAD, head, worker)) == (NewSlice(0, "first start"),)
    ready = member(0)
    assert plan(observed(ClusterState.STARTING_HEAD, ready, worker)) == (Move(ClusterState.STARTING_WORKERS),)
    assert plan(observed(ClusterState.STARTING_WORKERS, ready, worker)) == (NewSlice(1, "first start"),)


def test_a_start_that_was_decided_but_did_not_arrive_is_sent_again_with_the_same_generation() -> None:
    lost_call = member(0, SliceState.EMPTY, 1, seen_generation=0)
    assert plan(observed(ClusterState.STARTING_HEAD, lost_call)) == (SendSlice(0),)


def test_a_starting_slice_is_waited_for() -> None:
    assert plan(observed(ClusterState.STARTING_HEAD, member(0, SliceState.STARTING))) == (Wait(),)


def test_a_dead_worker_slice_is_started_again_under_its_lease() -> None:
    dead = member(1, SliceState.EXITED, detail="signal 9")
    (move,) = plan(observed(ClusterState.READY, member(0), dead))
    assert isinstance(move, Move)
    assert move.state is ClusterState.STARTING_WORKERS
    assert "signal 9" in move.reason
    (again,) = plan(observed(ClusterState.STARTING_WORKERS, member(0), dead))
    assert isinstance(again, NewSlice)
    assert again.rank == 1


def test_a_slice_that_cannot_be_kept_up_ends_the_cluster() -> None:
    dead = member(1, SliceState.EXITED, MAX_SHORT_STARTS)
    (move,) = plan(observed(ClusterState.STARTING_WORKERS, member(0), dead))
    assert move == Move(ClusterState.LOST, "rank 1 could not be kept up after 5 starts: ", Loss.CLUSTER_LOST)


def test_a_worker_that_dies_once_a_week_is_started_again_for_ever() -> None:
    dead = member(1, SliceState.EXITED, 100, short_starts=1)
    (again,) = plan(observed(ClusterState.STARTING_WORKERS, member(0), dead))
    assert isinstance(again, NewSlice)


def test_the_last_start_that_is_allowed_gets_its_chance_though_the_view_still_shows_the_end_of_the_one_before() -> None:
    sent = member(1, SliceState.EXITED, MAX_SHORT_STARTS, seen_generation=MAX_SHORT_STARTS - 1)
    assert plan(observed(ClusterState.STARTING_WORKERS, member(0), sent)) == (SendSlice(1),)


def test_a_restored_cluster_is_believed_once_the_core_shows_all_of_it() -> None:
    seen, unseen = member(0), member(1, None)
    assert plan(observed(ClusterState.READY, seen, member(1), doubted=True)) == (Believe(),)
    assert plan(observed(ClusterState.READY, seen, unseen, doubted=True)) == (Wait(),)
    (move,) = plan(observed(ClusterState.READY, seen, unseen, doubted=True, missing_seconds=MISSING_SECONDS))
    assert isinstance(move, Move)
    assert move.state is ClusterState.LOST


def test_a_dead_head_ends_a_cluster_that_served() -> None:
    (move,) = plan(observed(ClusterState.READY, member(0, SliceState.EXITED, detail="exit code 1"), member(1)))
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.LOST, Loss.CLUSTER_LOST)


def test_a_head_that_fails_its_first_start_is_tried_again() -> None:
    (again,) = plan(observed(ClusterState.STARTING_HEAD, member(0, SliceState.EXITED, detail="port_in_use")))
    assert isinstance(again, NewSlice)
    assert "port_in_use" in again.reason


def test_a_lost_node_ends_the_cluster_in_every_living_state() -> None:
    gone = member(1, node_alive=False)
    for state in (ClusterState.STARTING_HEAD, ClusterState.STARTING_WORKERS, ClusterState.READY):
        (move,) = plan(observed(state, member(0), gone))
        assert isinstance(move, Move)
        assert (move.state, move.loss) == (ClusterState.LOST, Loss.NODE_LOST)


def test_a_grant_on_a_node_that_was_dead_already_costs_no_retry() -> None:
    (move,) = plan(observed(ClusterState.GRANTING, member(0, node_alive=False), gang=GangState.PENDING))
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.STOPPING, Loss.GRANT_REJECTED)


def test_a_gang_that_the_core_took_back_is_lost_at_once() -> None:
    taken = observed(ClusterState.READY, member(0, None), gang=GangState.REJECTED, gang_detail="node n1 died")
    (move,) = plan(taken)
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.LOST, Loss.NODE_LOST)
    assert "node n1 died" in move.reason


def test_a_head_whose_lease_actor_came_back_with_nothing_is_missing() -> None:
    """A grant that was late makes an ended one anew; without this its job would run for ever, with no program."""
    came_back = observed(ClusterState.READY, member(0, SliceState.EMPTY, seen_generation=0), member(1))
    assert plan(replace(came_back, missing_seconds=MISSING_SECONDS - 1)) == (Wait(),)
    (move,) = plan(replace(came_back, missing_seconds=MISSING_SECONDS))
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.LOST, Loss.CLUSTER_LOST)


def test_a_worker_whose_lease_actor_came_back_with_nothing_is_started_again() -> None:
    empty = member(1, SliceState.EMPTY, seen_generation=0)
    (move,) = plan(observed(ClusterState.READY, member(0), empty))
    assert isinstance(move, Move)
    assert move.state is ClusterState.STARTING_WORKERS
    assert plan(observed(ClusterState.STARTING_WORKERS, member(0), empty)) == (SendSlice(1),)


def test_a_missing_lease_actor_is_believed_only_after_a_while() -> None:
    missing = observed(ClusterState.READY, member(0), member(1, None))
    assert plan(replace(missing, missing_seconds=MISSING_SECONDS - 1)) == (Wait(),)
    (move,) = plan(replace(missing, missing_seconds=MISSING_SECONDS))
    assert isinstance(move, Move)
    assert move.loss is Loss.CLUSTER_LOST


def test_a_lease_actor_that_the_core_says_has_ended_is_believed_soon() -> None:
    ended = observed(ClusterState.READY, member(0), member(1, None), gang=GangState.PENDING)
    assert plan(replace(ended, missing_seconds=ENDED_SECONDS - 1)) == (Wait(),)
    (move,) = plan(replace(ended, missing_seconds=ENDED_SECONDS))
    assert isinstance(move, Move)
    assert (move.state, move.loss) == (ClusterState.LOST, Loss.CLUSTER_LOST)


def test_a_stop_is_obeyed_in_every_living_state_and_ends_in_a_release() -> None:
    for state in (ClusterState.GRANTING, ClusterState.STARTING_HEAD, ClusterState.STARTING_WORKERS, ClusterState.READY):
        (move,) = plan(observed(state, stop_requested=True))
        assert isinstance(move, Move)
        assert move.state is ClusterState.STOPPING
    assert plan(observed(ClusterState.STOPPING)) == (ReleaseGang(),)


@pytest.mark.parametrize("stop", [False, True])
def test_a_cluster_that_is_gone_stays_gone(stop: bool) -> None:
    assert plan(observed(ClusterState.GONE, stop_requested=stop)) == ()
