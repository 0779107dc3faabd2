"""Going back to a backup: what it holds, what it costs, what stays shut."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import func, select

from polyray.control.leadership import KEY, Leadership
from polyray.core.clock import VirtualClock
from polyray.core.errors import Conflict, Unauthenticated
from polyray.core.ids import new_id
from polyray.core.lifecycle import NodeState
from polyray.core.settings import Settings
from polyray.identity.api_keys import make_key, revoke_key, verify_key
from polyray.identity.key_epoch import key_epoch_ms
from polyray.identity.keys import SigningKeys
from polyray.recovery.__main__ import main as recovery
from polyray.recovery.backup import make_backup
from polyray.recovery.manifest import Manifest, Member
from polyray.recovery.portable import settle_file
from polyray.recovery.restore import restore
from polyray.reports.costs import costs_of_month
from polyray.reports.metering import LineKind, month_of
from polyray.store import audit, claims
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.fenced import FencedStore
from polyray.store.migrate import MIGRATIONS
from polyray.store.steps import note
from polyray.store.tables import DatasetVersion, Event, ModelVersion, Node, RefreshToken, Tenant, User, Workload
from polyray.tenants.slices import GangState
from support.api import make_platform, prepare_state
from support.going_back import auditor_of, backed_up, contents, events, reopen, rewritten, went_back
from support.invariants import check, check_quiet
from support.world import World


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgresql_url"))


def test_a_backup_that_is_made_while_others_write_is_one_moment(tmp_path: Path, database_url: str) -> None:
    world = World(tmp_path / "state", database_url=database_url)
    writer = Store(world.settings.store_url)
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            with writer.write() as session:
                # Two rows and an event that belong together.
                session.get_one(Tenant, "vision").display_name = f"{n}"
                session.get_one(Tenant, "speech").display_name = f"{n}"
                note(session, "tenant", "vision", tenant="vision", now_ms=n, reason=f"{n}")

    with world.store.write() as session:
        for tenant in session.scalars(select(Tenant)):
            tenant.display_name = "0"
    thread = threading.Thread(target=write)
    thread.start()
    try:
        backups = [backed_up(world, f"b{n}") for n in range(5)]
    finally:
        stop.set()
        thread.join()
        writer.close()
    for backup in backups:
        other = Settings(state_dir=tmp_path / backup.stem)
        restore(other, backup, clock=world.clock)
        copy = Store(other.store_url)
        found = audit.verify(copy, ())
        assert found.findings == ()
        with copy.read() as session:
            names = set(session.scalars(select(Tenant.display_name)))
            newest = select(Event.reason).where(Event.kind == "tenant").order_by(Event.event_id.desc()).limit(1)
            assert names in ({session.scalar(newest)}, {"0"})
        copy.close()


def test_a_platform_that_goes_back_heals_and_says_what_is_lost(tmp_path: Path, database_url: str) -> None:
    world = World(tmp_path / "state", database_url=database_url)
    world.settle(5)
    finished = world.submit(name="finished")
    world.settle(5)
    waits = world.submit(workers=2)
    world.settle(8)
    auditor_of(world).look()
    backup = backed_up(world)
    before = events(world.store)

    # Since then: the first ends, others are started on machines of the cloud, and anchored.
    world.end_program(finished)
    since = [world.submit(name=f"since-{n}", workers=1) for n in range(3)]
    world.settle(20)
    assert world.workload(finished).state == "succeeded"
    instances = set(world.cloud.running)
    auditor_of(world).look()
    with world.store.read() as session:
        newest = session.scalar(select(func.max(Event.event_id)))

    report = went_back(world, backup)

    assert report.lost_events is not None
    assert (report.lost_events.first, report.lost_events.last) == (report.manifest.last_event_id + 1, newest)
    assert report.gap.lost is not None
    assert set(report.gap.lost["workloads"].names) == set(since)
    assert report.gap.ended_since is not None
    assert report.gap.ended_since.names == (finished,)
    assert report.replaced
    assert Path(report.replaced).exists()
    written = json.loads(Path(report.path).read_text())
    assert written["gap"]["lost"]["workloads"]["count"] == 3
    assert Path(report.path).stat().st_mode & 0o777 == 0o600

    # It heals: what the core holds for nobody is released, machines without a row end and are booked.
    world.settle(60)
    for second in range(240):
        for workload in (finished, waits):
            if world.workload(workload).state == "running":
                world.end_program(workload)
        world.settle(1, step_seconds=1)
        if second > 60 and all(world.workload(w).ended_ms for w in (finished, waits)):
            break
    world.settle(120, step_seconds=2)
    assert [world.workload(w).state for w in (finished, waits)] == ["succeeded", "succeeded"]
    assert [world.workload(w).retries for w in (finished, waits)] == [0, 0], "a restore costs nobody a retry"
    check_quiet(world)
    with world.store.read() as session:
        rows = {row.node_id: row for row in session.scalars(select(Node))}
    assert instances <= set(rows), "every machine has a row"
    for node_id, billed in world.cloud.billed.items():
        assert (rows[node_id].billed_from_ms, rows[node_id].billed_to_ms) == billed

    # The history goes on above what is lost, and says so.
    found = auditor_of(world).verify()
    assert found.ok
    assert [(gap.first, gap.last, gap.restored) for gap in found.gaps] == [
        (report.lost_events.first, report.lost_events.last, True)
    ]
    assert "restored from a backup of 2026-" in found.gaps[0].reason
    assert found.events > before


def test_what_the_core_still_runs_goes_on_and_what_it_does_not_waits_again_at_no_cost(
    tmp_path: Path, database_url: str
) -> None:
    world = World(tmp_path / "state", database_url=database_url)
    world.settle(5)
    lives, ended = world.submit(name="lives"), world.submit(name="ended")
    world.settle(15)
    assert [world.workload(w).state for w in (lives, ended)] == ["running", "running"]
    backup = backed_up(world)
    while world.fabric.release(world.cluster(ended).cluster_id).state is not GangState.ABSENT:
        pass

    went_back(world, backup)
    world.settle(5)
    assert [(world.workload(w).state, world.workload(w).attempt) for w in (lives, ended)] == [("running", 1)] * 2
    assert world.cluster(lives).loss == "", "the core holds it: it is believed"
    assert world.cluster(ended).loss != ""

    world.settle(60, step_seconds=1)
    check(world)
    assert (world.workload(lives).state, world.workload(lives).attempt) == ("running", 1), "it never noticed"
    assert (world.workload(ended).state, world.workload(ended).attempt) == ("running", 2)
    assert world.workload(ended).retries == 0
    world.kill_slice(lives, 0)
    world.settle(30)
    assert world.workload(lives).retries == 1, "what it loses from now on is its own"


def test_what_ran_when_all_was_killed_and_then_ended_runs_again_at_no_cost(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.settle(5)
    job = world.submit(retry={"limit": 0})
    world.settle(5)
    assert world.workload(job).state == "running"
    for node_id in world.cloud.running:
        world.cloud.end_instance(node_id)
    assert recovery(["--state-dir", str(world.settings.state_dir), "doubt"]) == 0
    world.restart()
    world.settle(90, step_seconds=1)
    row = world.workload(job)
    assert (row.state, row.attempt, row.retries) == ("running", 2, 0)


def test_a_machine_that_no_row_knows_is_booked_to_nobody(tmp_path: Path) -> None:
    world = World(tmp_path)
    offering = next(each for each in world.cloud.offerings() if each.name == "cloud")
    orphan, ended = new_id("node"), new_id("node")
    world.cloud.make_unknown_instance(ended, offering)
    world.cloud.make_unknown_instance(orphan, offering)
    world.clock.advance(100)
    world.cloud.end_instance(ended)
    world.settle(300, step_seconds=5)
    rows = {node.node_id: node for node in world.nodes()}
    assert world.cloud.running == tuple(each.node_id for each in world.nodes(NodeState.READY.value))
    for node_id in (orphan, ended):
        row = rows[node_id]
        assert (row.state, row.billed_from_ms, row.billed_to_ms) == ("terminated", *world.cloud.billed[node_id])
        assert "no row knew it" in row.state_reason
    now_ms = world.clock.now_ms()
    with world.store.read() as session:
        costs = costs_of_month(session, month_of(now_ms), now_ms)
    lines = [line for line in costs.lines if line.node.node_id in {orphan, ended}]
    assert {line.kind for line in lines} == {LineKind.UNATTRIBUTED}
    assert not any(line.payer.tenant for line in lines)
    assert sum(line.usd_micros for line in lines) == sum(
        node.usd_micros for node in {line.node.node_id: line.node for line in lines}.values()
    )


def test_tokens_issued_since_are_dead_and_what_was_revoked_stays_shut(tmp_path: Path) -> None:
    state = tmp_path / "state"
    prepare_state(state_made(state))
    platform = make_platform(state)
    settings, clock = platform.services.settings, platform.services.clock
    old_keys = dict(SigningKeys(state / "keys", "platform").public_pems())
    with platform.store.write() as session:
        key = make_key(session, tenant="vision", name="stays", created_by="ada", now_ms=clock.now_ms())
        leaked = make_key(session, tenant="vision", name="leaked", created_by="ada", now_ms=clock.now_ms())
        session.add(
            RefreshToken(token_hash="0" * 64, user="ada", client_id="c", sid="s", used_ms=None, expires_ms=2**50)
        )
    before = platform.token("ada")
    backup = tmp_path / "one.polyray-backup"
    make_backup(platform.store, settings, backup, clock=clock)
    with platform.store.write() as session:
        revoke_key(session, tenant="vision", key_id=leaked.key_id, now_ms=clock.now_ms())
        added = make_key(session, tenant="vision", name="added", created_by="ada", now_ms=clock.now_ms())
        session.get_one(User, "vic").disabled = True
        bob = session.get_one(User, "bob")
        bob.password_hash, bob.groups = "changed", []
        session.get_one(Tenant, "speech").suspended = True
    since = platform.token("ada")
    assert platform.client("ada").get("/v1/whoami").status_code == 200
    platform.store.close()

    report = restore(settings, backup, clock=clock)
    assert len(report.kept) == 5, report.kept

    store = Store(settings.store_url)
    with store.read() as session:
        epoch_ms = key_epoch_ms(session)
        assert session.scalar(select(func.count()).select_from(RefreshToken)) == 0
    keys = SigningKeys(state / "keys", "platform", clock, epoch_ms=epoch_ms)
    assert not set(old_keys) & {kid for kid, _ in keys.public_pems()}, "the gateway is given no old key"
    store.close()
    again = make_platform(state)
    for token in (before, since):
        answer = again.client().get("/v1/whoami", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401
    assert again.client("ada").get("/v1/whoami").status_code == 200

    with again.store.read() as session:
        now_ms = clock.now_ms()
        assert verify_key(session, key.key, service="digits", now_ms=now_ms).name == "stays"
        for dead in (leaked, added):
            with pytest.raises(Unauthenticated):
                verify_key(session, dead.key, service="digits", now_ms=now_ms)
        assert session.get_one(User, "vic").disabled
        bob = session.get_one(User, "bob")
        assert (bob.password_hash, bob.groups) == ("changed", [])
        assert session.get_one(Tenant, "speech").suspended


def state_made(state: Path) -> Path:
    state.mkdir(mode=0o700)
    return state


def test_an_old_leader_that_still_lives_stays_fenced(tmp_path: Path, database_url: str) -> None:
    world = World(tmp_path / "state", database_url=database_url)
    backup = backed_up(world)
    old = Leadership(world.store, world.clock)
    for _ in range(5):  # its epoch is higher than any that the backup knows
        with world.store.write() as session:
            claims.take(session, KEY, f"other-{_}", now_ms=world.clock.now_ms(), ttl_ms=0)
    old.renew()
    epoch = old.epoch()
    assert epoch == 6
    world.clock.advance(60)
    went_back(world, backup)
    new = Leadership(world.store, world.clock)
    new.renew()
    assert new.epoch() is not None
    assert (new.epoch() or 0) > epoch
    with pytest.raises(Conflict), FencedStore(world.store, KEY, old.epoch).write():
        pass


def test_a_database_that_cannot_be_read_is_replaced_and_kept_and_the_anchors_tell_the_gap(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.settle(5)
    backup = backed_up(world)
    world.settle(5)
    world.submit()
    world.settle(10)
    auditor_of(world).look()
    anchored = Anchors(world.settings.state_dir).newest()
    assert anchored is not None
    world.store.close()
    database = world.settings.state_dir / "polyray.db"
    spoilt = b"not a database" * 1000
    database.write_bytes(spoilt)

    report = went_back(world, backup)
    assert report.lost_events is not None
    assert report.lost_events.last == anchored.event_id
    assert Path(report.replaced).read_bytes() == spoilt
    assert any("cannot be read" in line for line in report.told())
    assert any("polyray key revoke" in line for line in report.told())
    world.settle(300, step_seconds=2)
    check_quiet(world)
    assert auditor_of(world).verify().ok


def test_files_without_rows_and_rows_without_files_are_reported(tmp_path: Path) -> None:
    state = tmp_path / "state"
    prepare_state(state_made(state))
    platform = make_platform(state)
    layout = platform.layout
    with platform.store.write() as session:
        for version in (1, 2):
            session.add(
                DatasetVersion(
                    tenant="vision",
                    name="digits",
                    version=version,
                    stage="raw",
                    digest="0" * 64,
                    manifest={"files": [{"sha256": f"{version}" * 64}]},
                    created_by="ada",
                    created_ms=1,
                )
            )
            session.add(
                ModelVersion(
                    tenant="vision",
                    name="net",
                    version=version,
                    digest="0" * 64,
                    files=[{"path": "a/w"}],
                    lineage={},
                    created_by="ada",
                    created_ms=1,
                )
            )
    for path in (
        layout.dataset("vision", "digits", 1) / "manifest.json",
        layout.dataset("vision", "digits", 2) / "manifest.json",
        layout.blob("vision", "1" * 64),
        layout.model("vision", "net", 2) / "a" / "w",
        layout.model("vision", "net", 3) / "w",
        layout.dataset("vision", "other", 1) / "manifest.json",
        layout.run("vision", "job-0000000000a1") / "run.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    backup = tmp_path / "one.polyray-backup"
    make_backup(platform.store, platform.services.settings, backup, clock=platform.services.clock)
    report = restore(platform.services.settings, backup, clock=platform.services.clock, dry_run=True)
    assert report.gap.rows_without_files["datasets"].names == ("vision/digits@2",)
    assert report.gap.rows_without_files["models"].names == ("vision/net@1",)
    assert report.gap.files_without_rows["runs"].names == ("vision/job-0000000000a1",)
    assert report.gap.files_without_rows["models"].names == ("vision/net@3",)
    assert report.gap.files_without_rows["datasets"].names == ("vision/other@1",)


# What is refused leaves everything as it was.


def test_a_backup_of_sqlite_is_restored_into_postgresql_and_back(tmp_path: Path, postgresql_url: str) -> None:
    world = World(tmp_path / "state")
    world.settle(5)
    job = world.submit()
    world.settle(5)
    assert world.workload(job).state == "running"
    backup = backed_up(world)
    world.store.close()

    world.settings = Settings(state_dir=tmp_path / "state", database_url=postgresql_url)
    report = restore(world.settings, backup, clock=world.clock)
    assert report.replaced == ""
    reopen(world)
    assert world.workload(job).state == "running"
    assert auditor_of(world).verify().ok
    with world.store.write() as session:
        note(session, "tenant", "vision", tenant="vision", now_ms=1, reason="goes on")
    world.settle(30)
    world.end_program(job)
    world.settle(60)
    assert world.workload(job).state == "succeeded"
    check_quiet(world)
    assert auditor_of(world).verify().ok

    back = backed_up(world, "two")
    elsewhere = Settings(state_dir=tmp_path / "elsewhere")
    restore(elsewhere, back, clock=world.clock)
    copy = Store(elsewhere.store_url)
    with copy.read() as session:
        assert session.get_one(Workload, job).state == "succeeded"
    assert not audit.verify(copy, ()).findings
    copy.close()


def test_an_older_backup_is_brought_forward(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    backup = backed_up(world)

    def older(members: dict[str, bytes]) -> dict[str, bytes]:
        path = tmp_path / "older.sqlite"
        path.write_bytes(members["database.sqlite"])
        downgrade(path, "0001")
        content = path.read_bytes()
        manifest = Manifest.model_validate_json(members["manifest.json"])
        member = Member(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        changes = {"schema_revision": "0001", "members": {"database.sqlite": member}}
        return {"manifest.json": manifest.model_copy(update=changes).as_bytes(), "database.sqlite": content}

    rewritten(backup, older)
    world.store.close()
    restore(world.settings, backup, clock=VirtualClock())
    assert contents(world.settings) == (0, True)


def downgrade(path: Path, revision: str) -> None:
    store = Store(f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with store.write() as session:
        config.attributes["connection"] = session.connection()
        command.downgrade(config, revision)
    store.close()
    settle_file(path)
