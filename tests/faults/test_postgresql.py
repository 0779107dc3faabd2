"""PostgreSQL when it fails: what was asked for is done as a whole or not at all, and the caller may ask again."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from polyray.api.idempotency import Request, once
from polyray.core.errors import Invalid, PolyrayError, Unavailable
from polyray.core.settings import load_settings
from polyray.identity.tokens import Principal
from polyray.store import engine, migrate, postgresql
from polyray.store.engine import Store
from polyray.store.tables import Event, Tenant, Workload
from support.postgresql import PostgreSQLServer
from support.rows import NOW_MS, add_tenant, add_workload
from support.wait import until


@pytest.fixture
def url(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.3)
    return postgresql_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    migrate.migrate(store)
    yield store
    store.close()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection to the database: a migration, an operator at the prompt."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


def submit(store: Store) -> None:
    with store.write() as session:
        add_tenant(session)
        add_workload(session)


def counted(store: Store) -> tuple[int, ...]:
    with store.read() as session:
        return tuple(
            session.scalar(select(func.count()).select_from(table)) or 0 for table in (Tenant, Workload, Event)
        )


def backend_of(session: Any) -> int:
    return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())


def again(store: Store) -> None:
    """Submit until it is taken, as a client does that is told to try again."""

    def taken() -> bool:
        try:
            submit(store)
        except Unavailable:
            return False
        return True

    until(taken, seconds=30, every=0.05)


def test_a_backend_killed_in_the_middle_of_a_write_leaves_nothing_and_the_store_comes_back_by_itself(
    store: Store,
) -> None:
    with pytest.raises(Unavailable) as lost, store.write() as session:
        add_tenant(session)
        add_workload(session)
        os.kill(backend_of(session), signal.SIGKILL)
    assert lost.value.retryable
    again(store)
    assert counted(store) == (1, 1, 1)


def test_a_server_that_crashed_is_unavailable_at_once_and_has_all_that_was_committed_when_it_is_back(
    store: Store, postgresql: PostgreSQLServer
) -> None:
    submit(store)
    postgresql.stop(immediately=True)
    try:
        began = time.monotonic()
        for ask in (lambda: submit(store), lambda: counted(store)):
            with pytest.raises(Unavailable, match="database_url"):
                ask()
        assert time.monotonic() - began < 5
    finally:
        postgresql.start()
    assert counted(store) == (1, 1, 1)


def test_a_restart_between_two_transactions_is_not_noticed(store: Store, postgresql: PostgreSQLServer) -> None:
    submit(store)
    postgresql.stop()
    postgresql.start()
    assert counted(store) == (1, 1, 1)


def test_of_two_that_wait_for_each_other_the_write_is_undone_whole(
    store: Store, other: psycopg.Connection[Any]
) -> None:
    with store.write() as session:
        add_tenant(session)
    other.execute("SET deadlock_timeout = '1min'")
    other.execute("SELECT * FROM tenants FOR UPDATE")
    waiter = threading.Thread(target=other.execute, args=[f"SELECT pg_advisory_xact_lock({postgresql.WRITE_LOCK})"])
    with pytest.raises(Unavailable, match="deadlock") as lost, store.write() as session:
        session.execute(text("SET LOCAL lock_timeout = 0"))
        session.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
        waiter.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: session.execute(text(waits)).scalar_one())
        add_tenant(session, "speech", uid=60_002)
        add_workload(session)  # shares the row of its tenant
    waiter.join(10)
    other.rollback()
    assert lost.value.retryable
    assert counted(store) == (1, 0, 0)


@pytest.mark.parametrize("state", ["40001", "40P01", "53100", "53300", "55P03", "57P01", "57014", "58030", "XX001"])
def test_what_may_pass_undoes_the_whole_write_and_is_unavailable(state: str, store: Store) -> None:
    with pytest.raises(Unavailable) as lost, store.write() as session:
        add_tenant(session)
        session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'made' USING ERRCODE = '{state}'; END $$"))
    assert lost.value.retryable
    again(store)
    assert counted(store) == (1, 1, 1)


def test_a_defect_is_not_told_as_unavailable_and_quotes_no_rows(store: Store) -> None:
    with pytest.raises(DBAPIError) as defect, store.write() as session:
        session.execute(text("SELECT 1 / :zero, :secret"), {"zero": 0, "secret": "s3cret"})
    assert "s3cret" not in str(defect.value)


def test_more_readers_than_connections_are_told_to_come_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "KEPT_CONNECTIONS", 1)
    monkeypatch.setattr(engine, "MAX_CONNECTIONS", 3)
    store = Store(url)
    with ExitStack() as readers:
        for _ in range(3):
            readers.enter_context(store.read())
        with pytest.raises(Unavailable, match="in use"), store.read():
            pass
    with store.read() as session:
        assert session.execute(text("SELECT 1")).scalar_one() == 1
    store.close()


def test_a_server_without_a_free_connection_is_unavailable(
    store: Store, url: str, postgresql: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgresql.execute("ALTER ROLE locked CONNECTION LIMIT 0")
    try:
        with pytest.raises(Unavailable, match="too many connections"), Store(with_password(url)).read():
            pass
    finally:
        postgresql.execute("ALTER ROLE locked CONNECTION LIMIT -1")


def test_a_writer_that_is_stopped_in_the_middle_loses_its_write_and_the_next_goes_on(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "IDLE_SECONDS", 0.2)
    stopped = Store(url)
    with pytest.raises(Unavailable), stopped.write() as session:
        add_tenant(session)
        again(store)
        add_workload(session, "job-0000000000a2")
    assert counted(store) == (1, 1, 1)
    stopped.close()


def test_a_migration_that_keeps_a_table_makes_others_wait_no_longer_than_the_limit(
    store: Store, other: psycopg.Connection[Any]
) -> None:
    other.execute("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE")
    began = time.monotonic()
    for ask in (lambda: submit(store), lambda: counted(store)):
        with pytest.raises(Unavailable, match="lock timeout"):
            ask()
    assert time.monotonic() - began < 5
    other.rollback()
    submit(store)
    assert counted(store) == (1, 1, 1)


def test_a_migrator_gives_up_on_a_table_that_is_in_use_and_changes_nothing(
    url: str, store: Store, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.2)
    with store.write() as session:
        session.execute(text("DELETE FROM alembic_version"))
        session.execute(text("DROP TABLE budgets"))
    other.execute("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(Unavailable, match="lock timeout"):
        migrate.migrate(store)
    submit(store)
    assert counted(store) == (1, 1, 1)


def test_a_second_migrator_waits_for_the_first_and_gives_up_in_time(store: Store, url: str) -> None:
    second = Store(url)
    with store.write(), pytest.raises(Unavailable, match="lock timeout"):
        migrate.migrate(second)
    migrate.migrate(second)
    second.close()


class Answer(BaseModel):
    workload_id: str


def test_a_commit_whose_answer_was_lost_is_done_once_when_it_is_asked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(Principal("login:ada", "vision", "member", "s"), "key-1", "POST /v1/jobs", {"name": "digits"})
    with store.write() as session:
        add_tenant(session)

    def ask() -> Any:
        def work() -> Answer:
            return Answer(workload_id=add_workload(session).workload_id)

        with store.write() as session:
            return once(session, request, now_ms=NOW_MS, status=201, work=work)

    def lose_the_answer(connection: Any) -> None:
        connection.commit()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as cut:
        cut.setattr(store.engine.dialect, "do_commit", lose_the_answer)
        with pytest.raises(Unavailable):
            ask()
    answer = ask()
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert counted(store) == (1, 1, 1)


def with_password(url: str, password: str = "open-sesame") -> str:
    return url.replace("postgres@", f"locked:{password}@")


def refused(url: str) -> PolyrayError:
    """Ask at a URL; return what is told, which names the setting within seconds and never the password."""
    began = time.monotonic()
    with pytest.raises(PolyrayError) as told:
        migrate.migrate(Store(url))
    assert time.monotonic() - began < 10
    assert "database_url" in str(told.value)
    shown = f"{told.value} {told.value!r} {told.value.__cause__}"
    assert "s3cret" not in shown
    return told.value


def test_where_no_server_listens_is_told_within_seconds() -> None:
    told = refused("postgresql://ada:s3cret@127.0.0.1:1/polyray")
    assert isinstance(told, Unavailable)
    assert "127.0.0.1:1/polyray" in str(told)
    assert "refused" in str(told)


def test_a_server_that_never_answers_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = refused(f"postgresql://ada:s3cret@127.0.0.1:{silent.getsockname()[1]}/polyray")
    assert isinstance(told, Unavailable)


def test_a_wrong_password_an_unknown_role_or_database_is_told(postgresql_url: str) -> None:
    assert "password" in str(refused(with_password(postgresql_url, "s3cret")))
    assert "nobody-we-know" in str(refused(postgresql_url.replace("postgres@", "nobody-we-know@")))
    assert "does not exist" in str(refused(postgresql_url.replace("/test_postgresql", "/another")))


def test_a_role_that_may_not_make_tables_is_told_what_it_needs(postgresql_url: str) -> None:
    told = refused(with_password(postgresql_url))
    assert "must own the database" in str(told)


@pytest.mark.parametrize(
    "url",
    ["s3cret", "mysql://ada:s3cret@db/polyray", "postgresql://ada:s3cret@db:port/polyray", "postgresql:/s3cret"],
)
def test_a_url_that_is_none_of_a_database_of_ours_is_invalid_and_not_quoted(url: str) -> None:
    assert isinstance(refused(url), PolyrayError)


def test_without_the_driver_one_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    told = refused("postgres://ada:s3cret@db/polyray")
    assert isinstance(told, Invalid)
    assert "polyray[postgres]" in told.hint


def test_the_password_is_shown_by_neither_settings_nor_engine(postgresql_url: str) -> None:
    settings = load_settings(database_url=with_password(postgresql_url, "s3cret"))
    assert "s3cret" not in f"{settings} {settings!r} {Store(settings.store_url).engine!r}"
