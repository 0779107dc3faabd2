"""What the platform forgets, and when: nothing grows for ever, and what was removed is said (C12)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from polyray.control import retention
from polyray.control.retention import DAY_MS, Retention
from polyray.core.clock import VirtualClock
from polyray.core.lifecycle import WorkloadState
from polyray.identity.tokens import revoked_sids
from polyray.store.steps import step
from polyray.store.tables import (
    DeviceCode,
    Event,
    IdempotencyKey,
    LoginSession,
    PortBlock,
    RefreshToken,
    Workload,
)
from support.api import Platform, job, make_platform
from support.rows import add_tenant, add_workload
from support.world import World

DAYS = 30


@pytest.fixture
def platform(prepared_state: Path, tmp_path: Path) -> Platform:
    shutil.copytree(prepared_state, tmp_path / "state")
    return make_platform(tmp_path / "state")


def sweep_at(platform: Platform, now_ms: int, *, wall_ms: int | None = None) -> None:
    clock, wall = VirtualClock(now_ms), VirtualClock(now_ms if wall_ms is None else wall_ms)
    sweeper = Retention(store=platform.store, layout=platform.layout, clock=clock, wall=wall, history_days=lambda: DAYS)
    sweeper.reconcile("sweep")


def count(platform: Platform, table: type[Any]) -> int:
    with platform.store.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def a_run(platform: Platform, name: str = "digits", *, ended_ms: int | None) -> str:
    """Return a job with a log, which has ended or still runs."""
    ada = platform.client("ada")
    workload_id = str(ada.post("/v1/jobs", json=job(name=name)).json()["id"])
    logs = platform.layout.run("vision", workload_id) / "logs"
    logs.mkdir(parents=True)
    (logs / "driver.log").write_bytes(b"hello\n")
    with platform.store.write() as session:
        row = session.get_one(Workload, workload_id)
        for state in (WorkloadState.STARTING, WorkloadState.RUNNING):
            step(session, row, state, now_ms=1)
        if ended_ms is not None:
            step(session, row, WorkloadState.SUCCEEDED, now_ms=ended_ms)
            row.ended_ms = ended_ms
    return workload_id


def test_a_run_is_removed_the_days_after_its_end_that_the_operator_says_and_no_day_before(platform: Platform) -> None:
    now_ms = platform.services.clock.now_ms()
    old = a_run(platform, ended_ms=now_ms)
    sweep_at(platform, now_ms + DAYS * DAY_MS)
    assert platform.client("ada").get(f"/v1/jobs/{old}/logs").content == b"hello\n"
    sweep_at(platform, now_ms + DAYS * DAY_MS + 1)
    assert not platform.layout.run("vision", old).exists()


def test_what_was_removed_is_said_and_the_job_its_events_and_its_bill_are_kept(platform: Platform) -> None:
    now_ms = platform.services.clock.now_ms()
    old = a_run(platform, ended_ms=now_ms)
    events = platform.client("ada").get(f"/v1/jobs/{old}/events").json()
    sweep_at(platform, now_ms + (DAYS + 1) * DAY_MS)
    ada = platform.client("ada")
    for path in ("logs", "logs?follow=true", "records"):
        answer = ada.get(f"/v1/jobs/{old}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert f"{DAYS + 1} days after its end" in answer.json()["detail"]
        assert "history_days" in answer.json()["hint"]
    assert ada.get(f"/v1/jobs/{old}").json()["state"] == "succeeded"
    assert ada.get(f"/v1/jobs/{old}/events").json() == events
    assert ada.get(f"/v1/costs?workload={old}").status_code == 200
    model = ada.post("/v1/models", json={"name": "m", "job_id": old, "path": "artifacts/model"})
    assert "removed" in model.json()["detail"]


def test_what_runs_or_waits_is_never_removed_however_old(platform: Platform) -> None:
    now_ms = platform.services.clock.now_ms()
    running = a_run(platform, ended_ms=None)
    waiting = platform.client("ada").post("/v1/jobs", json=job()).json()["id"]
    sweep_at(platform, now_ms + 100 * DAYS * DAY_MS)
    assert platform.client("ada").get(f"/v1/jobs/{running}/logs").content == b"hello\n"
    assert platform.client("ada").get(f"/v1/jobs/{waiting}/logs").status_code == 200


def test_a_link_in_place_of_a_run_is_not_followed_and_keeps_no_other_run_from_going(platform: Platform) -> None:
    now_ms = platform.services.clock.now_ms()
    planted, other = (a_run(platform, name, ended_ms=now_ms) for name in ("a", "b"))
    run = platform.layout.run("vision", planted)
    run.rename(run.with_name("away"))
    keys = platform.services.settings.state_dir / "keys"
    run.symlink_to(keys)
    before = sorted(keys.iterdir())
    sweep_at(platform, now_ms + (DAYS + 1) * DAY_MS)
    assert sorted(keys.iterdir()) == before
    assert before
    assert not platform.layout.run("vision", other).exists()


def test_runs_that_cannot_be_removed_hold_up_no_others(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_RUNS", 2)
    now_ms = platform.services.clock.now_ms()
    runs = [platform.layout.run("vision", a_run(platform, ended_ms=now_ms + n)) for n in range(4)]
    for run in runs[:3]:
        run.rename(run.with_name(f"{run.name}-away"))
        run.symlink_to("nowhere")
    clock = VirtualClock(now_ms + (DAYS + 1) * DAY_MS)
    sweeper = Retention(
        store=platform.store, layout=platform.layout, clock=clock, wall=clock, history_days=lambda: DAYS
    )
    assert [sweeper.reconcile("sweep").again_seconds for _ in range(3)] == [1.0, 1.0, None]
    assert not runs[3].exists()
    runs[0].unlink()
    runs[0].with_name(f"{runs[0].name}-away").rename(runs[0])
    sweeper.reconcile("sweep")
    assert not runs[0].exists()


def test_a_workload_that_never_had_a_directory_is_done_with_at_once(platform: Platform) -> None:
    ada, now_ms = platform.client("ada"), platform.services.clock.now_ms()
    mine = ada.post("/v1/jobs", json=job()).json()["id"]
    ada.post(f"/v1/jobs/{mine}/stop")
    sweep_at(platform, now_ms + (DAYS + 1) * DAY_MS)
    assert platform.client("ada").get(f"/v1/jobs/{mine}/logs").status_code == 404


def test_what_matters_for_a_while_goes_once_its_time_is_over(platform: Platform) -> None:
    now_ms = platform.services.clock.now_ms()
    ada = platform.client("ada")
    ada.post("/v1/jobs", json=job(), headers={"Idempotency-Key": "k"})
    with platform.store.write() as session:
        for n, ends_ms in enumerate((now_ms + 10 * DAY_MS, now_ms + 1)):
            session.add(DeviceCode(code_hash=f"{n}", user_code=f"{n}", client_id="c", expires_ms=ends_ms))
            session.add(
                RefreshToken(token_hash=f"{n}", user="ada", client_id="c", sid="s", used_ms=None, expires_ms=ends_ms)
            )
            session.add(
                LoginSession(
                    sid=f"{n}", subject="ada", tenant=None, role="member", expires_ms=ends_ms, created_ms=now_ms
                )
            )
            session.add(PortBlock(host="loopback", index=n, lease_id=f"rest-{n}", usable_again_ms=ends_ms))
        session.add(PortBlock(host="loopback", index=7, lease_id="lea-0000000000a1", usable_again_ms=None))
    tables = (IdempotencyKey, DeviceCode, RefreshToken, PortBlock)
    before = [count(platform, table) for table in tables]
    sweep_at(platform, now_ms)
    assert [count(platform, table) for table in tables] == before
    sweep_at(platform, now_ms + 3 * DAY_MS)
    assert [count(platform, table) for table in tables] == [0, 1, 1, 2]
    with platform.store.read() as session:
        assert session.get(LoginSession, "1") is None
        assert session.get(LoginSession, "0") is not None
        assert session.get(PortBlock, ("loopback", 7)) is not None, "a block that is held stays"


@pytest.mark.parametrize("moved", ["the wall clock is put forward", "the wall clock was put back"])
def test_a_login_is_not_forgotten_while_its_tokens_hold_by_either_clock(platform: Platform, moved: str) -> None:
    """The gateway refuses an ended login's tokens only while its row is there."""
    now_ms = platform.services.clock.now_ms()
    ada = platform.client("ada")
    platform.services.tokens.revoke(ada.get("/v1/whoami").json()["sid"])
    with platform.store.write() as session:
        session.add(
            RefreshToken(token_hash="r", user="ada", client_id="c", sid="s", used_ms=None, expires_ms=now_ms + DAY_MS)
        )
    with platform.store.read() as session:
        refused = revoked_sids(session, now_ms)
    assert len(refused) == 1
    far = now_ms + 30 * DAY_MS
    if moved == "the wall clock is put forward":
        sweep_at(platform, now_ms, wall_ms=far)
    else:
        sweep_at(platform, far, wall_ms=now_ms)
    with platform.store.read() as session:
        assert revoked_sids(session, now_ms) == refused
    assert count(platform, RefreshToken) == 1


def test_more_than_one_transaction_may_hold_is_forgotten_in_several(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    now_ms = platform.services.clock.now_ms()
    with platform.store.write() as session:
        for n in range(35):
            session.add(
                IdempotencyKey(principal="p", key=f"{n}", request_hash="", status=201, body=b"", created_ms=now_ms)
            )
    sweep_at(platform, now_ms + 2 * DAY_MS)
    assert count(platform, IdempotencyKey) == 0


def test_an_end_without_a_time_or_a_time_without_an_end_is_no_reason_to_remove(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.store.write() as session:
        add_tenant(session, "other", uid=7)
        add_workload(session, tenant="other", ended_ms=1)
    run = tmp_path / "store" / "tenants" / "other" / "runs" / "job-0000000000a1"
    run.mkdir(parents=True)
    from polyray.core.layout import Layout

    clock, layout = world.clock, Layout(tmp_path / "store")
    sweeper = Retention(store=world.store, layout=layout, clock=clock, wall=clock, history_days=lambda: DAYS)
    sweeper.reconcile("sweep")
    assert run.exists()
    assert world.workload("job-0000000000a1").history_removed_ms is None


def test_events_are_never_forgotten(platform: Platform) -> None:
    now_ms = platform.services.clock.now_ms()
    a_run(platform, ended_ms=now_ms)
    before = count(platform, Event)
    sweep_at(platform, now_ms + 1000 * DAY_MS)
    assert count(platform, Event) == before
