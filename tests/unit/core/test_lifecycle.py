from __future__ import annotations

import pytest

from polyray.core.lifecycle import (
    CLUSTER,
    LEASE,
    NODE,
    TABLES,
    WORKLOAD,
    ClusterState,
    ForbiddenStep,
    LeaseState,
    NodeState,
    State,
    TransitionTable,
    WorkloadState,
)

TERMINAL: dict[str, set[State]] = {
    "workload": {WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED},
    "cluster": {ClusterState.GONE},
    "lease": {LeaseState.RELEASED},
    "node": {NodeState.TERMINATED},
}


def reachable(table: TransitionTable, start: State) -> set[State]:
    found, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        new = {finish for (begin, finish) in table.steps if begin is here} - found
        found |= new
        frontier += new
    return found


@pytest.fixture(params=TABLES, ids=lambda table: table.kind)
def table(request: pytest.FixtureRequest) -> TransitionTable:
    found: TransitionTable = request.param
    return found


def test_there_is_one_table_for_each_kind() -> None:
    assert {table.kind for table in TABLES} == set(TERMINAL)
    assert TABLES == (WORKLOAD, CLUSTER, LEASE, NODE)


def test_exactly_the_terminal_states_have_no_way_out(table: TransitionTable) -> None:
    assert table.terminal == TERMINAL[table.kind]


def test_every_state_can_be_reached(table: TransitionTable) -> None:
    assert reachable(table, table.initial) == table.states


def test_every_state_can_come_to_an_end(table: TransitionTable) -> None:
    for state in table.states:
        assert reachable(table, state) & table.terminal, state


def test_no_step_stands_still_or_crosses_tables(table: TransitionTable) -> None:
    for start, finish in table.steps:
        assert start is not finish
        assert {start, finish} <= table.states


def test_every_step_says_why(table: TransitionTable) -> None:
    for (start, finish), reason in table.steps.items():
        assert table.check("x", start, finish) == reason
        assert reason.strip()


def test_every_other_step_is_forbidden_and_tells_the_story(table: TransitionTable) -> None:
    for start in table.states:
        for finish in table.states:
            if (start, finish) not in table.steps:
                with pytest.raises(ForbiddenStep, match=f"{table.kind} x-1: no step from {start} to {finish}") as error:
                    table.check("x-1", start, finish, ["1 - -> a: made", "2 a -> b: moved"])
                assert "\n  1 - -> a: made\n  2 a -> b: moved" in str(error.value)


def test_states_of_two_kinds_that_are_spelled_alike_are_not_mixed_up() -> None:
    for start, finish in LEASE.steps:
        with pytest.raises(ForbiddenStep):
            NODE.check("x", start, finish)
