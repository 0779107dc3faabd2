"""PostgreSQL fails over to a standby that lacks the last moments: what they held is gone, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from polyray.control.auditing import Auditor
from polyray.core.clock import VirtualClock
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.tables import Workload
from support.invariants import check, check_quiet
from support.postgresql import PostgreSQLServer
from support.wait import until
from support.world import World


@pytest.fixture
def primary() -> Iterator[PostgreSQLServer]:
    server = PostgreSQLServer(replicated=True)
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgreSQLServer) -> Iterator[PostgreSQLServer]:
    server = primary.standby()
    yield server
    server.remove()


def fail_over(world: World, primary: PostgreSQLServer, standby: PostgreSQLServer) -> None:
    primary.stop(immediately=True)
    standby.start()
    standby.promote()
    world.store.close()
    world.store = Store(standby.url("postgres"))
    world.restart()


def test_what_the_standby_did_not_receive_is_cleaned_up_and_the_rest_goes_on(
    tmp_path: Path, primary: PostgreSQLServer, standby: PostgreSQLServer
) -> None:
    world = World(tmp_path / "state", database_url=primary.url("postgres"))
    world.settle(5)
    kept = world.submit()
    world.settle(5)
    assert world.workload(kept).state == "running"
    until(lambda: standby.caught_up_with(primary), seconds=30, what="the standby")
    standby.stop()
    anchors = Anchors(tmp_path)
    lost = world.submit(workers=2)
    world.settle(8)
    assert world.workload(lost).state == "running"
    Auditor(world.store, anchors, VirtualClock(), lambda: True).look()

    fail_over(world, primary, standby)

    well, told = _audited(world.store, anchors)
    assert not well
    assert "older than its anchor" in told
    with world.store.read() as session:
        assert list(session.scalars(select(Workload.workload_id))) == [kept], "the standby never heard of the other"
    world.settle(60, step_seconds=1)
    check(world)
    row = world.workload(kept)
    assert (row.state, row.attempt) == ("running", 1), "it never noticed"
    world.end_program(kept)
    world.settle(60, step_seconds=1)
    check_quiet(world)


def test_a_commit_that_was_acknowledged_by_both_is_never_lost(
    tmp_path: Path, primary: PostgreSQLServer, standby: PostgreSQLServer
) -> None:
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.execute("SELECT pg_reload_conf()")
    synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    until(lambda: primary.execute(synchronous) == [(1,)], seconds=30, what="the standby to be waited for")
    world = World(tmp_path / "state", database_url=primary.url("postgres"))
    world.settle(3)
    acknowledged = [world.submit(name=f"train-{n}") for n in range(20)]
    standby.stop()
    fail_over(world, primary, standby)
    with world.store.read() as session:
        assert set(session.scalars(select(Workload.workload_id))) == set(acknowledged)


def _audited(store: Store, anchors: Anchors) -> tuple[bool, str]:
    auditor = Auditor(store, anchors, VirtualClock(), lambda: True)
    auditor.verify()
    return auditor.said()
