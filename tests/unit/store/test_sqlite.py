"""SQLite when it will not take a write: locked, read-only, full, absent, spoilt."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from polyray.core.errors import Unavailable
from polyray.store import engine
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Tenant
from support.rows import add_tenant, add_workload


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "polyray.db"


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.1)
    store = Store(f"sqlite:///{path}")
    migrate(store)
    yield store
    store.close()


def with_pragma(store: Store, pragma: str) -> None:
    """Every connection made from now on runs `pragma`."""

    @event.listens_for(store.engine, "connect")
    def set_pragma(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA {pragma}")

    store.engine.dispose()  # closes those made before


def test_the_database_and_its_journals_are_readable_by_their_owner_alone(store: Store, path: Path) -> None:
    with store.write() as session:
        add_tenant(session)
        session.flush()
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_write_lock_that_another_process_keeps_is_unavailable_and_may_be_tried_again(
    store: Store, path: Path
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked") as refused, store.write():
        pass
    assert refused.value.retryable
    with store.read() as session:
        assert session.get(Tenant, "vision") is None
    other.execute("ROLLBACK")
    other.close()
    with store.write() as session:
        add_tenant(session)


def test_a_read_only_database_is_unavailable(store: Store) -> None:
    with_pragma(store, "query_only=ON")
    with pytest.raises(Unavailable, match="readonly"), store.write() as session:
        add_tenant(session)


def test_a_full_disk_is_unavailable_and_leaves_nothing_half_written(store: Store) -> None:
    with store.read() as session:
        pages = session.execute(text("PRAGMA page_count")).scalar_one()
    with_pragma(store, f"max_page_count={pages}")
    with pytest.raises(Unavailable, match="full"), store.write() as session:
        add_tenant(session)
        for n in range(200):
            add_workload(session, f"job-{n:012}", spec={"run": "x" * 1000})
    with store.read() as session:
        assert session.get(Tenant, "vision") is None


def test_more_readers_than_connections_are_told_to_come_again(store: Store) -> None:
    with ExitStack() as readers:
        for _ in range(engine.MAX_CONNECTIONS):
            readers.enter_context(store.read()).get(Tenant, "vision")
        with pytest.raises(Unavailable, match="in use") as refused, store.read() as session:
            session.get(Tenant, "vision")
        assert refused.value.retryable
    with store.read() as session:
        assert session.get(Tenant, "vision") is None


def test_a_place_where_no_database_can_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be made"):
        Store(f"sqlite:///{tmp_path}/file/polyray.db")


def test_a_file_that_is_no_database_is_unavailable_and_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious notes, no database at all" * 100)
    store = Store(f"sqlite:///{path}")
    with pytest.raises(Unavailable, match="not a database"):
        migrate(store)
    assert path.read_text().startswith("precious notes")


def test_a_commit_is_on_the_disk_when_it_returns(store: Store) -> None:
    with store.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar_one() == 2
        assert session.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
