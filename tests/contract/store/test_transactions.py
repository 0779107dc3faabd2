from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from polyray.core.errors import Unavailable
from polyray.store.engine import Store
from polyray.store.tables import Claim, Event, Quota, Tenant
from support.rows import NOW_MS, add_lease, add_one_of_each, add_tenant, add_workload


class Broken(Exception):
    pass


def count(store: Store, table: type[Tenant] | type[Event]) -> int:
    with store.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_what_was_written_is_read_by_all(store: Store, database_url: str) -> None:
    with store.write() as session:
        add_tenant(session)
    other = Store(database_url)
    with other.read() as session:
        assert session.get_one(Tenant, "vision").uid == 60_001
    other.close()


def test_rows_stay_readable_after_their_transaction(store: Store) -> None:
    with store.write() as session:
        tenant = add_tenant(session)
    assert tenant.display_name == "Vision"
    with store.read() as session:
        read = session.get_one(Tenant, "vision")
    assert read.uid == 60_001


def test_text_that_a_stranger_made_up_is_not_found_and_breaks_nothing(store: Store) -> None:
    for name in ("", "vision\0", "\0", "'; DROP TABLE tenants; --", "%s", "%(name)s", "ü" * 1000, "\N{PILE OF POO}"):
        with store.write() as session:
            add_tenant(session, uid=1).display_name = name
            session.flush()
            assert session.get(Tenant, name) is None
            kept = session.get_one(Tenant, "vision").display_name
            assert kept.replace("\N{REPLACEMENT CHARACTER}", "\0") == name  # PostgreSQL's text knows no NUL
            session.rollback()


def test_an_error_in_a_write_leaves_nothing_of_it(store: Store) -> None:
    with pytest.raises(Broken), store.write() as session:
        add_tenant(session)
        add_workload(session)
        raise Broken
    assert count(store, Tenant) == count(store, Event) == 0


def test_a_read_commits_nothing(store: Store) -> None:
    with suppress(Unavailable), store.read() as session:  # PostgreSQL refuses what SQLite forgets
        add_tenant(session)
    assert count(store, Tenant) == 0


def test_a_read_is_one_view_whatever_is_written_meanwhile(store: Store) -> None:
    with store.read() as session:
        tenants = select(func.count()).select_from(Tenant)
        assert session.scalar(tenants) == 0
        with store.write() as writing:
            add_tenant(writing)
            add_workload(writing)
        assert session.scalar(tenants) == session.scalar(select(func.count()).select_from(Event)) == 0
    assert count(store, Tenant) == count(store, Event) == 1


def test_a_write_that_breaks_a_rule_of_the_schema_leaves_nothing(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write() as session:
        add_tenant(session)
        add_tenant(session, "speech", uid=60_001)
    assert count(store, Tenant) == 0


@pytest.mark.parametrize("values", [{"nominal": -3}, {"nominal": 1, "borrowing_limit": -1}])
def test_the_schema_itself_refuses_a_negative_quota(values: dict[str, int], store: Store) -> None:
    with pytest.raises(IntegrityError), store.write() as session:
        add_tenant(session)
        session.add(Quota(tenant="vision", flavor="gpu", **values))


def test_the_schema_itself_refuses_a_row_of_an_unknown_tenant(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write() as session:
        add_workload(session, tenant="nobody")


def test_the_schema_itself_refuses_two_leases_of_one_rank_and_an_epoch_of_zero(store: Store) -> None:
    with store.write() as session:
        add_one_of_each(session)
    with pytest.raises(IntegrityError), store.write() as session:
        add_lease(session, "lea-0000000000a2", rank=0)
    with pytest.raises(IntegrityError), store.write() as session:
        add_lease(session, "lea-0000000000a2", rank=1, epoch=0)


def test_a_living_session_has_its_name_alone_and_jobs_may_share_one(store: Store) -> None:
    with store.write() as session:
        add_tenant(session)
        add_workload(session, "job-0000000000a1")
        add_workload(session, "job-0000000000a2")
        add_workload(session, "ses-0000000000a1", kind="session", live_name="default")
    with pytest.raises(IntegrityError), store.write() as session:
        add_workload(session, "ses-0000000000a2", kind="session", live_name="default")


def test_two_writers_never_overlap(store: Store) -> None:
    inside = threading.Semaphore(1)
    overlapped = threading.Event()

    def write(n: int) -> None:
        with store.write() as session:
            if not inside.acquire(blocking=False):
                overlapped.set()
            add_tenant(session, f"t{n}", uid=n)
            inside.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert not overlapped.is_set()
    assert count(store, Tenant) == 40


def test_what_a_write_reads_is_what_it_decides_on(store: Store) -> None:
    """Forty times read, add one, write: with stale reads some of them would be lost."""
    with store.write() as session:
        session.add(Claim(key="counter", owner="x", epoch=0, expires_ms=0))

    def add_one(_: int) -> None:
        with store.write() as session:
            session.get_one(Claim, "counter").epoch += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(40)))
    with store.read() as session:
        assert session.get_one(Claim, "counter").epoch == 40


def test_readers_neither_wait_for_a_writer_nor_see_it_half_done(store: Store) -> None:
    with store.write() as session:
        add_tenant(session)
        seen: list[int] = []
        reader = threading.Thread(target=lambda: seen.append(count(store, Tenant)))
        reader.start()
        reader.join(5)
        assert seen == [0]
    assert count(store, Tenant) == 1


def test_events_are_numbered_in_the_order_of_their_writes(store: Store) -> None:
    with store.write() as session:
        add_one_of_each(session)
    with store.read() as session:
        events = list(session.scalars(select(Event).order_by(Event.event_id)))
    assert [event.kind for event in events] == ["workload", "cluster", "node", "lease"]
    assert {event.at_ms for event in events} == {NOW_MS}
