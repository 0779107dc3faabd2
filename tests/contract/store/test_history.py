"""The chain of events, on every database: what was changed, removed or put back is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import event as engine_events
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from polyray.control import auditing
from polyray.control.auditing import Auditor
from polyray.core.clock import VirtualClock
from polyray.core.errors import Unavailable
from polyray.store import audit, chain
from polyray.store.anchors import Anchor, Anchors
from polyray.store.audit import Audit
from polyray.store.engine import Store
from polyray.store.migrate import MIGRATIONS, migrate
from polyray.store.steps import note
from polyray.store.tables import Event
from support.rows import NOW_MS, add_one_of_each
from support.wait import until

Tell = Callable[..., None]


@pytest.fixture
def tell(store: Store) -> Tell:
    """Notes so many events, each in a transaction of its own."""

    def told(count: int, what: str = "it happened") -> None:
        for n in range(count):
            with store.write() as session:
                note(session, "tenant", "vision", tenant="vision", now_ms=NOW_MS + n, reason=f"{what} {n}")

    return told


def anchor(store: Store) -> Anchor:
    with store.read() as session:
        return Anchor(*chain.head(session), at_ms=NOW_MS)


def verified(store: Store, *anchors: Anchor) -> Audit:
    return audit.verify(store, anchors)


def execute(store: Store, statement: str) -> None:
    with store.write() as session:
        session.execute(text(statement))


def test_a_history_that_nobody_touched_is_whole(store: Store, tell: Tell) -> None:
    assert verified(store).ok
    tell(3)
    with store.write() as session:
        add_one_of_each(session)
    anchored = anchor(store)
    tell(2, "later")
    found = verified(store, anchored)
    assert (found.ok, found.events, found.findings, found.gaps) == (True, 9, (), ())


def test_what_was_rolled_back_is_in_no_chain(store: Store, tell: Tell) -> None:
    with pytest.raises(KeyError), store.write() as session:
        note(session, "tenant", "vision", tenant=None, now_ms=NOW_MS, reason="never")
        raise KeyError
    with store.write() as session:
        note(session, "tenant", "vision", tenant=None, now_ms=NOW_MS, reason="before")
        with pytest.raises(KeyError), session.begin_nested():
            note(session, "tenant", "vision", tenant=None, now_ms=NOW_MS, reason="never")
            raise KeyError
        with session.begin_nested():
            note(session, "tenant", "vision", tenant=None, now_ms=NOW_MS, reason="within")
        note(session, "tenant", "vision", tenant=None, now_ms=NOW_MS, reason="after")
    tell(1)
    found = verified(store)
    assert (found.ok, found.events) == (True, 4)


def test_many_events_of_one_transaction_cost_one_more_read(store: Store) -> None:
    statements: list[str] = []
    engine_events.listen(store.engine, "before_cursor_execute", lambda *seen: statements.append(seen[2]))
    with store.write() as session:
        for n in range(50):
            note(session, "tenant", "vision", tenant="vision", now_ms=NOW_MS, reason=f"{n}")
    assert sum(statement.startswith("SELECT events") for statement in statements) == 1
    assert verified(store).ok


@pytest.mark.parametrize("reason", ["\0", "ü\ud800x", "\N{PILE OF POO}", "", "'\"\\\n"])
def test_whatever_is_told_the_chain_holds(store: Store, reason: str) -> None:
    with store.write() as session:
        note(session, "tenant", "vision\0", tenant=None, now_ms=NOW_MS, reason=reason)
    assert verified(store).ok


@pytest.mark.parametrize("change", ["reason = 'another'", "at_ms = at_ms + 1", "tenant = NULL", "chain = ''"])
def test_a_changed_row_is_named(store: Store, tell: Tell, change: str) -> None:
    tell(5)
    execute(store, f"UPDATE events SET {change} WHERE event_id = 3")
    assert verified(store).findings[0] == "event 3 was changed"


def test_a_row_that_holds_no_text_any_more_is_named_and_the_rest_is_walked(store: Store, tell: Tell) -> None:
    """SQLite keeps whatever was put into a column."""
    tell(5)
    if store.on_postgresql:
        execute(store, "UPDATE events SET kind = 'gap', entity_id = '1-' WHERE event_id = 3")
    else:
        execute(store, "UPDATE events SET kind = 'gap', entity_id = x'00ff', reason = x'ff' WHERE event_id = 3")
    found = verified(store)
    assert found.findings == ("event 3 was changed",)
    assert found.events == 5


def test_a_row_that_was_removed_is_named(store: Store, tell: Tell) -> None:
    tell(5)
    execute(store, "DELETE FROM events WHERE event_id = 3")
    assert verified(store).findings == ("events 3 to 3 are missing, or event 4 was changed",)


def test_a_history_that_was_written_anew_does_not_agree_with_its_anchor(store: Store, tell: Tell) -> None:
    tell(3)
    anchored = anchor(store)
    execute(store, "DELETE FROM events")
    with store.write() as session:
        chain.skip_to(session, 1)
    tell(3, "it never happened")
    (finding,) = verified(store, anchored).findings
    assert finding.startswith("event 3 is not the one that was anchored at 2026-")


def test_a_database_that_is_older_than_its_anchor_is_told_once_and_goes_on_above_what_is_lost(
    store: Store, tell: Tell, tmp_path: Path
) -> None:
    tell(3)
    anchors = Anchors(tmp_path)
    auditor = Auditor(store, anchors, VirtualClock(), lambda: True)
    auditor.look()
    tell(4, "then")
    auditor.look()
    execute(store, "DELETE FROM events WHERE event_id > 3")

    told = "events 4 to 7 are missing: the database is older than its anchor; restored from a backup?"
    assert verified(store, *anchors.read()).findings == (told,)
    for _ in range(2):
        successor = Auditor(store, anchors, VirtualClock(), lambda: True)
        successor.begin()
    tell(2, "afterwards")
    found = successor.verify()
    assert found.findings == ()
    assert [(gap.first, gap.last, gap.event_id, gap.reason) for gap in found.open_gaps] == [(4, 7, 8, told)]
    assert not successor.said()[0]
    assert told in successor.said()[1]
    with store.read() as session:
        assert session.scalars(select(Event.event_id).order_by(Event.event_id)).all() == [1, 2, 3, 8, 9, 10]

    assert successor.acknowledge("olga").ok
    assert successor.said() == (True, "7 events verified, events 4 to 7 are lost")


@pytest.mark.parametrize("written_since", [0, 2, 9])
def test_a_database_that_loses_its_end_under_a_running_leader_is_told_within_its_next_look(
    store: Store, tell: Tell, tmp_path: Path, written_since: int
) -> None:
    tell(3)
    auditor = Auditor(store, Anchors(tmp_path), VirtualClock(), lambda: True)
    auditor.look()
    tell(4, "then")
    auditor.look()
    execute(store, "DELETE FROM events WHERE event_id > 3")
    with store.write() as session:
        chain.skip_to(session, 4)
    tell(written_since, "on the standby")
    auditor.look()
    well, said = auditor.said()
    assert not well
    assert ("older than its anchor" in said) if written_since < 4 else ("not the one that was anchored" in said)
    told = auditor.verify()
    auditor.look()
    assert auditor.verify().events == told.events, "it is told once"


def test_a_finding_becomes_an_event_once(store: Store, tell: Tell, tmp_path: Path) -> None:
    tell(3)
    execute(store, "UPDATE events SET reason = 'another' WHERE event_id = 2")
    for _ in range(2):
        auditor = Auditor(store, Anchors(tmp_path), VirtualClock(), lambda: True)
        auditor.verify()
        auditor.look()
        auditor.look()
    with store.read() as session:
        told = session.scalars(select(Event.reason).where(Event.kind == "audit")).all()
    assert told == ["event 2 was changed"]
    assert auditor.said()[0] is False


def test_anchors_are_made_while_there_is_something_new_and_by_the_leader_alone(
    store: Store, tell: Tell, tmp_path: Path
) -> None:
    anchors = Anchors(tmp_path)
    auditor = Auditor(store, anchors, VirtualClock(), lambda: True)
    auditor.look()
    assert anchors.read() == ()
    tell(2)
    auditor.look()
    auditor.look()
    assert [each.event_id for each in anchors.read()] == [2]
    tell(1)
    Auditor(store, anchors, VirtualClock(), lambda: False).look()
    assert len(anchors.read()) == 1
    auditor.stop()
    assert [each.event_id for each in anchors.read()] == [2, 3]


def test_a_full_disk_keeps_no_event_and_the_anchor_comes_when_there_is_room(
    store: Store, tell: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors = Anchors(tmp_path)
    auditor = Auditor(store, anchors, VirtualClock(), lambda: True)
    tell(1)
    with monkeypatch.context() as full:

        def refuse(given: Anchor) -> None:
            raise Unavailable("the anchor cannot be written: no space left", hint="make room")

        full.setattr(anchors, "append", refuse)
        auditor.look()
        assert auditor.said()[0] is False
        assert "no space left" in auditor.said()[1]
        tell(1)
    auditor.look()
    assert auditor.said()[0] is True
    assert [each.event_id for each in anchors.read()] == [2]


def test_whatever_fails_in_the_auditor_is_told_and_tried_again(
    store: Store, tell: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "ANCHOR_SECONDS", 0.01)
    auditor, failures = Auditor(store, Anchors(tmp_path), VirtualClock(), lambda: True), ["walk", "look"]

    def fail_once(of: str) -> None:
        if of in failures:
            failures.remove(of)
            raise ArithmeticError(f"a defect in the {of}")

    verify, head = audit.verify, chain.head

    def verify_later(*given: Any, **named: Any) -> Audit:
        fail_once("walk")
        return verify(*given, **named)

    def head_later(session: Session) -> chain.Head:
        if threading.current_thread().name == "auditor":
            fail_once("look")
        return head(session)

    tell(1)
    monkeypatch.setattr(audit, "verify", verify_later)
    monkeypatch.setattr(chain, "head", head_later)
    auditor.start()
    until(lambda: not failures and auditor.said() == (True, "1 events verified"), what="an audit after a failure")
    until(lambda: Anchors(tmp_path).newest() is not None, what="an anchor after a failure")
    auditor.stop()


def test_events_from_before_the_chain_are_chained_by_the_migration(database_url: str) -> None:
    store = Store(database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with store.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "0001")
        for n in range(1, 2502):
            values = {"n": n, "reason": f"{n} ü"}
            session.execute(
                text(
                    "INSERT INTO events (at_ms, kind, entity_id, tenant, start, finish, reason)"
                    " VALUES (:n, 'workload', 'job', NULL, '', 'queued', :reason)"
                ),
                values,
            )
    migrate(store)
    found = verified(store)
    assert (found.ok, found.events) == (True, 2501)
    with store.write() as session:
        note(session, "tenant", "vision", tenant="vision", now_ms=NOW_MS, reason="now")
    assert verified(store).ok
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(Event)) == 2502
    store.close()
