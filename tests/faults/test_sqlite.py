"""SQLite when it fails under the platform: told as unavailable, nothing half done, and well again by itself."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from polyray.core.errors import Unavailable
from polyray.core.lifecycle import LeaseState
from polyray.store import engine, sqlite
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Cluster, Event, IdempotencyKey, Lease, Workload
from support.api import Platform, job, make_platform
from support.invariants import check, check_quiet
from support.rows import add_tenant, add_workload
from support.served import served
from support.small_disk import SmallDisk, on_small_disk
from support.world import World

BUSY_SECONDS = 1.0
#: More than one page of the database, so that a submit has many writes to fail at.
LONG = {"NOTES": "x" * 20_000}


@pytest.fixture
def platform(prepared_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(engine, "BUSY_SECONDS", BUSY_SECONDS)
    state = tmp_path / "state"
    shutil.copytree(prepared_state, state)
    made = make_platform(state)
    yield made
    made.store.close()


@pytest.fixture
def other(platform: Platform) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the database: an operator's tool, a backup."""
    with closing(sqlite3.connect(database_of(platform), isolation_level=None, check_same_thread=False)) as connection:
        yield connection


def database_of(platform: Platform) -> Path:
    return platform.services.settings.state_dir / "polyray.db"


def counted(platform: Platform) -> tuple[int, ...]:
    """Return how many workloads there are, events of workloads, and answers kept under a key."""
    with platform.store.read() as session:
        told = select(func.count()).select_from(Event).where(Event.kind == "workload")
        counts = (select(func.count()).select_from(Workload), told, select(func.count()).select_from(IdempotencyKey))
        return tuple(session.scalar(count) or 0 for count in counts)


def refused(answer: Any) -> str:
    """Return what a refusal says; it is one that a client may repeat."""
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "1"
    problem = answer.json()
    assert problem["retryable"]
    assert problem["hint"]
    return str(problem["detail"])


def integrity(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


# Locked


def test_a_lock_held_by_another_is_told_within_the_bound_and_the_next_write_works(
    platform: Platform, other: sqlite3.Connection
) -> None:
    ada = platform.client("ada")
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    assert "locked" in refused(ada.post("/v1/jobs", json=job(), headers={"Idempotency-Key": "k"}))
    assert time.monotonic() - began < BUSY_SECONDS + 5
    assert counted(platform) == (0, 0, 0)
    other.execute("ROLLBACK")
    assert ada.post("/v1/jobs", json=job(), headers={"Idempotency-Key": "k"}).status_code == 201
    assert counted(platform) == (1, 1, 1)


def test_reads_and_health_go_on_while_more_writers_wait_for_the_lock_than_there_are_threads(
    platform: Platform, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 30)
    headers = platform.client("ada").headers
    other.execute("BEGIN IMMEDIATE")
    with served(platform.app) as url, httpx.Client(base_url=url, timeout=60, headers=dict(headers)) as reader:

        def submit(n: int) -> int:
            return httpx.post(f"{url}/v1/jobs", json=job(), headers=dict(headers), timeout=60).status_code

        with ThreadPoolExecutor(100) as writers:
            sent = [writers.submit(submit, n) for n in range(100)]
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                assert reader.get("/healthz").status_code == 200
                assert reader.get("/v1/jobs").json()["items"] == []
            assert not any(each.done() for each in sent)
            other.execute("ROLLBACK")
            assert {each.result() for each in sent} == {201}
    assert counted(platform)[0] == 100


def test_writes_go_on_while_a_backup_copies_the_database_and_the_copy_is_whole(
    platform: Platform, other: sqlite3.Connection, tmp_path: Path
) -> None:
    ada = platform.client("ada")
    for _ in range(20):
        ada.post("/v1/jobs", json=job(env=LONG))
    written: list[int] = []

    def write_once(status: int, remaining: int, total: int) -> None:
        if len(written) < 3:
            written.append(ada.post("/v1/jobs", json=job()).status_code)

    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        other.backup(copy, pages=8, progress=write_once)
    assert written == [201, 201, 201]
    assert integrity(tmp_path / "copy.db") == "ok"
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        workloads = copy.execute("SELECT count(*) FROM workloads").fetchone()[0]
        told = copy.execute("SELECT count(*) FROM events WHERE kind = 'workload'").fetchone()[0]
    assert workloads == told >= 20


# The journal


def test_a_reader_that_does_not_end_stops_no_write_before_the_journals_limit_and_then_is_told(
    platform: Platform, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MAX_JOURNAL_BYTES", 2 * 2**20)
    monkeypatch.setattr(sqlite, "KEPT_JOURNAL_BYTES", 2**18)
    platform.store.engine.dispose()
    ada = platform.client("ada")
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM workloads").fetchone()
    taken = 0
    while (answer := ada.post("/v1/jobs", json=job(env=LONG))).status_code == 201:
        taken += 1
    assert taken > 20
    assert "journal" in refused(answer)
    assert sqlite.journal_bytes(platform.store.engine) < 3 * 2**20
    assert "journal of 2 MiB" in platform.store.told()
    assert len(ada.get("/v1/jobs?limit=10").json()["items"]) == 10
    other.execute("COMMIT")
    assert ada.post("/v1/jobs", json=job()).status_code == 201
    assert ada.post("/v1/jobs", json=job()).status_code == 201
    assert sqlite.journal_bytes(platform.store.engine) <= 2**18
    assert counted(platform)[0] == taken + 2


def test_a_large_journal_of_one_transaction_is_cut_back_by_the_writes_after_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "KEPT_JOURNAL_BYTES", 2**18)
    platform.store.engine.dispose()
    ada = platform.client("ada")
    with platform.store.write() as session:
        for n in range(400):
            add_workload(session, f"job-{n:012}", spec={"kind": "job", "name": "a", "run": "x" * 50_000})
    assert sqlite.journal_bytes(platform.store.engine) > 10 * 2**20
    for _ in range(3):
        assert ada.post("/v1/jobs", json=job()).status_code == 201
    assert sqlite.journal_bytes(platform.store.engine) <= 2**18


# Full


def test_a_disk_that_is_full_at_any_write_of_a_submit_leaves_nothing_and_room_makes_it_well(
    prepared_state: Path, tmp_path: Path
) -> None:
    def body(disk: SmallDisk) -> None:
        shutil.copytree(prepared_state, disk.root / "state")
        platform = make_platform(disk.root / "state")
        ada, done, taken_in_a_row = platform.client("ada"), 0, 0
        for k in range(60):
            disk.clear()
            _begin_journal_anew(platform.store)
            disk.fill(free_pages=k)
            answer = ada.post("/v1/jobs", json=job(env=LONG), headers={"Idempotency-Key": f"k{k}"})
            if answer.status_code == 201:
                taken_in_a_row += 1
                done += 1
            else:
                taken_in_a_row = 0
                told = refused(answer)
                assert ("full" in told and "make room" in answer.json()["hint"]) or "disk I/O" in told, told
                assert counted(platform) == (done, done, done), f"full at page {k}"
                assert ada.get("/healthz").status_code == 200
                disk.clear()
                assert ada.post("/v1/jobs", json=job(env=LONG), headers={"Idempotency-Key": f"k{k}"}).status_code == 201
                done += 1
            assert counted(platform) == (done, done, done), f"after page {k}"
            if taken_in_a_row == 3:
                break
        else:
            raise AssertionError("no number of free pages was enough")
        assert k > 5, "a submit has several writes to fail at"
        disk.clear()
        platform.store.close()
        assert integrity(disk.root / "state" / "polyray.db") == "ok"

    on_small_disk(tmp_path / "disk", body)


def test_a_disk_that_is_full_at_any_write_of_a_grant_gives_nothing_or_all_and_room_makes_it_well(
    tmp_path: Path,
) -> None:
    def body(disk: SmallDisk) -> None:
        refusals = granted_in_a_row = 0
        world = World(disk.root / "state")
        world.settle(2)
        for k in range(60):
            workload = world.submit(resources={"cpu": 1, "memory": "1GiB"}, env=LONG)
            _begin_journal_anew(world.store)
            disk.fill(free_pages=k)
            scheduler = next(each for each in world.reconcilers if each.kind == "broker")
            try:
                scheduler.reconcile("cycle")
                granted_in_a_row += 1
            except Unavailable as error:
                assert error.retryable
                refusals, granted_in_a_row = refusals + 1, 0
                assert leases(world, workload) == ([], [])
            check(world)
            disk.clear()
            world.settle(3)
            assert leases(world, workload) == ([LeaseState.ACTIVE.value], [1])
            world.end_program(workload)
            world.settle(4)
            assert world.workload(workload).state == "succeeded"
            check(world)
            if granted_in_a_row == 3:
                break
        else:
            raise AssertionError("no number of free pages was enough")
        assert refusals > 3, "a grant has several writes to fail at"
        world.settle(20)
        check_quiet(world)
        world.store.close()
        assert integrity(disk.root / "state" / "polyray.db") == "ok"

    on_small_disk(tmp_path / "disk", body)


def leases(world: World, workload_id: str) -> tuple[list[str], list[int]]:
    """Return the states of a workload's leases, and its clusters' attempts."""
    with world.store.read() as session:
        states = session.scalars(select(Lease.state).where(Lease.workload_id == workload_id)).all()
        attempts = session.scalars(select(Cluster.attempt).where(Cluster.workload_id == workload_id)).all()
    return list(states), list(attempts)


def test_everything_goes_on_after_an_hour_without_any_room(tmp_path: Path) -> None:
    def body(disk: SmallDisk) -> None:
        world = World(disk.root / "state")
        world.settle(2)
        running, waiting = world.submit(), world.submit(resources={"cpu": 2, "memory": "1GiB"})
        world.settle(10)
        assert world.workload(running).state == "running"
        disk.fill(free_pages=0)
        world.end_program(running)
        world.settle(3600, step_seconds=30)
        check(world)
        disk.clear()
        world.settle(20)
        assert world.workload(running).state == "succeeded"
        assert world.workload(waiting).state == "running"
        world.end_program(waiting)
        world.settle(30)
        check_quiet(world)

    on_small_disk(tmp_path / "disk", body)


def _begin_journal_anew(store: Store) -> None:
    """Empty the journal, so that what is written next needs room on the disk."""
    with closing(sqlite3.connect(str(store.engine.url.database))) as connection:
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    assert not busy


# Read-only


def test_a_read_only_disk_is_told_and_is_no_matter_once_it_can_be_written_again(
    prepared_state: Path, tmp_path: Path
) -> None:
    def body(disk: SmallDisk) -> None:
        shutil.copytree(prepared_state, disk.root / "state")
        platform = make_platform(disk.root / "state")
        ada = platform.client("ada")
        assert ada.post("/v1/jobs", json=job()).status_code == 201
        platform.store.engine.dispose()
        disk.remount(read_only=True)
        refused(ada.post("/v1/jobs", json=job()))
        assert ada.get("/healthz").status_code == 200
        platform.store.engine.dispose()
        disk.remount(read_only=False)
        assert ada.post("/v1/jobs", json=job()).status_code == 201
        assert counted(platform)[:2] == (2, 2)
        platform.store.close()
        assert integrity(disk.root / "state" / "polyray.db") == "ok"

    on_small_disk(tmp_path / "disk", body)


# Damaged


def spoil(database: Path, *, page: int, pages: int = 1) -> None:
    """Write rubbish over whole pages; the first, page 1, holds the header and the schema."""
    with database.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096 * pages)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A database of some hundred pages of which all but the first few are rubbish."""
    database = tmp_path / "state" / "polyray.db"
    store = Store(f"sqlite:///{database}")
    migrate(store)
    with store.write() as session:
        add_tenant(session)
        for n in range(100):
            add_workload(session, f"job-{n:012}", spec={"kind": "job", "name": "a", "run": "x" * 2000})
    store.close()
    size = database.stat().st_size // 4096
    spoil(database, page=60, pages=size - 60)
    return database


def test_a_damaged_database_is_found_at_the_start_and_the_way_out_is_named(damaged: Path) -> None:
    store = Store(f"sqlite:///{damaged}")
    with pytest.raises(Unavailable, match="damaged") as told:
        store.require_sound()
    assert str(damaged) in str(told.value)
    assert "polyray restore" in told.value.hint
    store.close()


def test_the_control_plane_does_not_start_on_a_damaged_database_and_leaves_it_as_it_is(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyray.app import main

    before = damaged.read_bytes()
    assert main(["--state-dir", str(damaged.parent)]) == 6
    assert "polyray restore" in capsys.readouterr().err
    assert damaged.read_bytes() == before


def test_a_page_that_is_spoilt_while_the_platform_runs_is_told_and_the_process_goes_on(
    platform: Platform, other: sqlite3.Connection
) -> None:
    ada = platform.client("ada")
    for _ in range(60):
        ada.post("/v1/jobs", json=job(env=LONG))
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    platform.store.engine.dispose()
    other.close()
    database = database_of(platform)
    root = _root_page(database, "workloads")
    good = database.read_bytes()
    spoil(database, page=root)
    assert "malformed" in refused(ada.get("/v1/jobs"))
    assert "malformed" in refused(ada.post("/v1/jobs", json=job()))
    assert ada.get("/healthz").status_code == 200
    platform.store.engine.dispose()
    for journal in ("-wal", "-shm"):
        database.with_name(database.name + journal).unlink(missing_ok=True)
    database.write_bytes(good)  # as an operator brings back a copy
    assert ada.post("/v1/jobs", json=job()).status_code == 201
    assert integrity(database) == "ok"


def _root_page(database: Path, table: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()[0])
