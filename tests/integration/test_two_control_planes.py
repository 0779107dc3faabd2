"""Two control planes on one database: one leads, the other takes over, and one that slept does no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from polyray.control.leadership import TTL_SECONDS
from polyray.core.errors import Conflict
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Claim, Event
from support import invariants
from support.planes import ControlPlane, Pauses
from support.wait import until
from support.world import World

TAKEN_OVER_SECONDS = 30
JOB: dict[str, Any] = {"resources": {"cpu": 1}, "capacity": ["reserved", "on_demand"]}


DATABASES = pytest.mark.parametrize("world", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if request.param == "postgres":
        monkeypatch.setenv("POLYRAY_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    # The two are on machines of their own: neither sees that the other is dead.
    monkeypatch.setattr("polyray.control.leadership._dead_here", lambda owner: False)
    world = World(tmp_path)
    yield world
    world.store.close()


@pytest.fixture
def planes(world: World) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    planes = ControlPlane(world), ControlPlane(world)
    yield planes
    for plane in planes:
        plane.close()


def settle(world: World, *alive: ControlPlane, seconds: float = 15.0) -> None:
    for _ in range(round(seconds)):
        world.clock.advance(1.0)
        for plane in alive:
            plane.round()
        assert sum(plane.leadership.held() for plane in alive) <= 1
    invariants.check(world)


@DATABASES
def test_one_leads_and_the_other_waits(world: World, planes: tuple[ControlPlane, ControlPlane]) -> None:
    first, second = planes
    job = world.submit(**JOB)
    settle(world, first, second, seconds=TTL_SECONDS * 2)
    assert first.leadership.held()
    assert not second.leadership.held()
    assert world.workload(job).state == "running"
    with pytest.raises(Conflict), second.store.write():
        pass


@DATABASES
def test_the_other_takes_over_within_30_seconds_of_the_firsts_death_and_what_runs_goes_on(
    world: World, planes: tuple[ControlPlane, ControlPlane]
) -> None:
    first, second = planes
    running = world.submit(**JOB)
    settle(world, first, second)
    queued = world.submit(**JOB)
    settle(world, second, seconds=TAKEN_OVER_SECONDS)
    assert second.leadership.held()
    settle(world, second)
    assert [world.workload(job).state for job in (running, queued)] == ["running", "running"]
    assert world.workload(running).attempt == 1
    for job in (running, queued):
        world.end_program(job)
    settle(world, second)
    assert [world.workload(job).state for job in (running, queued)] == ["succeeded", "succeeded"]


@DATABASES
@pytest.mark.parametrize("skew_ms", [3_600_000, -3_600_000])
def test_clocks_that_disagree_delay_no_take_over(
    skew_ms: int, world: World, planes: tuple[ControlPlane, ControlPlane], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = planes
    settle(world, first, seconds=2)
    ours = world.clock.now_ms
    monkeypatch.setattr(world.clock, "now_ms", lambda: ours() + skew_ms)
    settle(world, second, seconds=TAKEN_OVER_SECONDS)
    assert second.leadership.held()
    assert not first.leadership.held()


STORY = [("", "queued"), ("queued", "starting"), ("starting", "running"), ("running", "succeeded")]


#: Before an effect each, from the launch of the node to the program's start; fewer on PostgreSQL, which is slower.
MOMENTS = [("sqlite", k) for k in range(1, 15, 2)] + [("postgres", k) for k in (4, 10)]


@pytest.mark.parametrize("ended", [False, True], ids=["it-still-runs", "it-is-over"])
@pytest.mark.parametrize(("world", "k"), MOMENTS, indirect=["world"])
def test_a_leader_that_slept_anywhere_is_fenced_when_it_wakes_and_nothing_is_done_twice(
    k: int, ended: bool, world: World, planes: tuple[ControlPlane, ControlPlane]
) -> None:
    """It sleeps right before its k-th effect; the other leads meanwhile, and goes on, with the job or to its end."""
    first, second = planes

    def meanwhile() -> None:
        settle(world, second, seconds=TTL_SECONDS + 14)
        assert second.leadership.held()
        if ended:
            world.end_program(job)
            settle(world, second, seconds=8)
            assert world.workload(job).state == "succeeded"

    pauses = Pauses(first, k, meanwhile)
    job = world.submit(**JOB, workers=2)
    for _ in range(10):
        if pauses.woke:
            break
        world.clock.advance(1.0)
        first.round()
    assert pauses.woke
    assert pauses.refused in (True, None)
    settle(world, first, second, seconds=12)
    if not ended:
        assert world.workload(job).state == "running"
        world.end_program(job)
        settle(world, first, second, seconds=8)
    assert (world.workload(job).attempt, world.story(job)) == (1, STORY)
    assert not world.live_leases()
    assert not world.fabric.gangs()
    with world.store.read() as session:
        assert session.get_one(Claim, "leader").epoch == 2


WRITER = """
import sys
from polyray.control import leadership
from polyray.core.clock import SystemClock
from polyray.core.errors import PolyrayError
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from polyray.store.steps import note

name, url = sys.argv[1:]
leadership._machine = lambda: name
store = Store(url)
leads = leadership.Leadership(store, SystemClock())
fenced = FencedStore(store, leadership.KEY, leads.epoch)
leads.start()
for n in iter(int, 1):
    try:
        with fenced.write() as session:
            note(session, "test", name, tenant=None, now_ms=0, reason=str(leads.epoch()))
    except PolyrayError as error:
        print(error, flush=True)
    leads._stopping.wait(0.05)
"""


def test_a_real_process_that_leads_is_stopped_is_succeeded_within_30_seconds_and_writes_nothing_when_it_wakes(
    postgresql_url: str, tmp_path: Path
) -> None:
    store = Store(postgresql_url)
    migrate(store)

    def written_by(name: str) -> list[int]:
        with store.read() as session:
            found = session.execute(select(Event.event_id, Event.entity_id).order_by(Event.event_id))
            return [event_id for event_id, entity_id in found if entity_id == name]

    def start(name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / name).open("wb") as said:
            return subprocess.Popen([sys.executable, "-c", WRITER, name, postgresql_url], stdout=said, stderr=said)

    first = start("first")
    until(lambda: written_by("first"), what="the first leads")
    second = start("second")
    try:
        until(lambda: b"does not hold" in (tmp_path / "second").read_bytes())
        os.kill(first.pid, signal.SIGSTOP)
        began = time.monotonic()
        until(lambda: written_by("second"), seconds=TAKEN_OVER_SECONDS, every=0.1)
        assert time.monotonic() - began <= TAKEN_OVER_SECONDS
        os.kill(first.pid, signal.SIGCONT)
        until(lambda: b"does not hold" in (tmp_path / "first").read_bytes())
        assert max(written_by("first")) < min(written_by("second"))
    finally:
        for process in (first, second):
            process.kill()
            process.wait(10)
        store.close()
