from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from polyray.core.lifecycle import ForbiddenStep, State, WorkloadState
from polyray.store import steps
from polyray.store.engine import Store
from polyray.store.tables import Base, Event, Workload
from support.rows import NOW_MS, add_one_of_each

KINDS = ["workload", "cluster", "node", "lease"]


def row_of(session: Session, kind: str) -> steps.Row:
    workload, cluster, node, lease = add_one_of_each(session)
    rows: dict[str, steps.Row] = {"workload": workload, "cluster": cluster, "node": node, "lease": lease}
    return rows[kind]


def again(session: Session, row: steps.Row) -> steps.Row:
    """The same row, read anew."""
    return cast(steps.Row, session.get_one(type(row), steps.described(row)[1]))


def events_of(session: Session, entity_id: str) -> list[tuple[str, str]]:
    found = session.scalars(select(Event).where(Event.entity_id == entity_id).order_by(Event.event_id))
    return [(event.start, event.finish) for event in found]


@pytest.fixture
def fresh(store: Store) -> Callable[[], None]:
    """Empties the database between two examples of a property."""

    def empty() -> None:
        with store.write() as session:
            for table in reversed(Base.metadata.sorted_tables):
                session.execute(delete(table))

    return empty


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_row_has_the_initial_state_and_one_event(kind: str, store: Store) -> None:
    with store.write() as session:
        row = row_of(session, kind)
        table, entity_id = steps.described(row)
        assert row.state == table.initial
        assert events_of(session, entity_id) == [("", table.initial.value)]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_event_is_told_if_and_only_if_the_step_was_made(
    kind: str, data: st.DataObject, store: Store, fresh: Callable[[], None]
) -> None:
    fresh()
    with store.write() as session:
        row = row_of(session, kind)
    table, entity_id = steps.described(row)
    states = sorted(table.states)
    state: State = table.initial
    told = [("", state.value)]
    for finish in data.draw(st.lists(st.sampled_from(states), max_size=12)):
        allowed = (state, finish) in table.steps
        try:
            with store.write() as session:
                steps.step(session, again(session, row), finish, now_ms=NOW_MS)
        except ForbiddenStep as forbidden:
            assert not allowed
            assert len(str(forbidden).splitlines()) == len(told) + 1, "the whole story is told"
        else:
            assert allowed
            told.append((state.value, finish.value))
            state = finish
        with store.read() as session:
            assert again(session, row).state == state.value
            assert events_of(session, entity_id) == told


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_state_never_changes(kind: str, store: Store) -> None:
    with store.write() as session:
        row = row_of(session, kind)
        table, _ = steps.described(row)
        for end in table.terminal:
            for finish in table.states:
                row.state = end.value
                with pytest.raises(ForbiddenStep):
                    steps.step(session, row, finish, now_ms=NOW_MS)
                assert row.state == end.value


def test_a_step_that_is_not_committed_leaves_no_event(store: Store) -> None:
    with store.write() as session:
        row, *_ = add_one_of_each(session)
    with pytest.raises(KeyError), store.write() as session:
        mine = session.get_one(Workload, row.workload_id)
        steps.step(session, mine, WorkloadState.STARTING, now_ms=NOW_MS)
        raise KeyError
    with store.read() as session:
        assert session.get_one(Workload, row.workload_id).state == "queued"
        assert events_of(session, row.workload_id) == [("", "queued")]


def test_a_given_reason_is_kept_on_the_row_and_in_the_event(store: Store) -> None:
    with store.write() as session:
        row, *_ = add_one_of_each(session)
        steps.step(session, row, WorkloadState.FAILED, now_ms=NOW_MS + 1, reason="exit code 3")
        assert row.state_reason == "exit code 3"
        event = session.scalars(select(Event).order_by(Event.event_id.desc())).first()
        assert event is not None
        assert (event.reason, event.at_ms, event.tenant) == ("exit code 3", NOW_MS + 1, "vision")


def test_a_note_is_told_and_changes_no_state(store: Store) -> None:
    with store.write() as session:
        row, *_ = add_one_of_each(session)
        steps.note(session, "workload", row.workload_id, tenant="vision", now_ms=NOW_MS, reason="slice restarted")
        assert events_of(session, row.workload_id) == [("", "queued"), ("", "")]
        assert row.state == "queued"


def test_the_typed_states_are_those_of_the_rows(store: Store) -> None:
    with store.write() as session:
        workload, cluster, node, lease = add_one_of_each(session)
        assert steps.workload_state(workload) == "queued"
        assert steps.cluster_state(cluster) == "granting"
        assert steps.node_state(node) == "intended"
        assert steps.lease_state(lease) == "granted"
