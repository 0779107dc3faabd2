"""A backup or a restore that cannot be done is told as what it is, and nothing is touched."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Tier
from polyray.core import faultpoints
from polyray.core.errors import Code, Conflict, PolyrayError, Unavailable
from polyray.core.settings import Settings
from polyray.identity.keys import SigningKeys
from polyray.recovery.backup import make_backup
from polyray.recovery.manifest import Manifest, Member
from polyray.recovery.restore import restore
from polyray.supervise.control import prepare_state_dir
from polyray.supervise.lock import SupervisorLock
from support.going_back import auditor_of, backed_up, reopen, rewritten, went_back
from support.small_disk import SmallDisk, on_small_disk
from support.world import World


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[tuple[World, Path]]:
    world = World(tmp_path / "state")
    world.settle(5)
    (world.settings.state_dir / "platform.json").write_text("{}")
    backup = backed_up(world)
    world.submit()
    world.settle(5)
    world.store.close()
    yield world, backup
    world.store.close()


def state_of(world: World) -> dict[str, bytes]:
    """All files of a state directory but the lock's."""
    settle = sqlite3.connect(world.settings.state_dir / "polyray.db")
    settle.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    settle.close()
    kept = {path for path in world.settings.state_dir.rglob("*") if path.is_file()}
    return {str(path): path.read_bytes() for path in kept if path.name not in {"supervisor.pid", "polyray.db-shm"}}


def manifest_with(**changes: object) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def change(members: dict[str, bytes]) -> dict[str, bytes]:
        return {**members, "manifest.json": json.dumps({**json.loads(members["manifest.json"]), **changes}).encode()}

    return change


def database_with(statement: str) -> Callable[[Path], object]:
    """Return what changes a backup's database, and lets its manifest say that this is so."""

    def change(members: dict[str, bytes]) -> dict[str, bytes]:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(members["database.sqlite"])
        connection.executescript(statement)
        content = connection.serialize()
        connection.close()
        member = Member(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        manifest = Manifest.model_validate_json(members["manifest.json"])
        told = manifest.model_copy(update={"members": {**manifest.members, "database.sqlite": member}})
        return {**members, "database.sqlite": content, "manifest.json": told.as_bytes()}

    return lambda path: rewritten(path, change)


def flipped(members: dict[str, bytes]) -> dict[str, bytes]:
    content = bytearray(members["database.sqlite"])
    content[len(content) // 2] ^= 1
    return {**members, "database.sqlite": bytes(content)}


SPOILT: dict[str, Callable[[Path], object]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(b"\0\1\2" * 10_000),
    "a gzip of noise": lambda path: path.write_bytes(gzip.compress(b"noise" * 1000)),
    "one bit": lambda path: rewritten(path, flipped),
    "a member more": lambda path: rewritten(path, lambda members: {**members, "../evil": b"x"}),
    "a member less": lambda path: rewritten(path, lambda m: {"manifest.json": m["manifest.json"]}),
    "no manifest": lambda path: rewritten(path, lambda m: {"database.sqlite": m["database.sqlite"]}),
    "a later format": lambda path: rewritten(path, manifest_with(format=2)),
    "a later schema": lambda path: rewritten(path, manifest_with(schema_revision="9999")),
    "other counts": lambda path: rewritten(path, manifest_with(rows={"workloads": 17})),
    "another history": lambda path: rewritten(path, manifest_with(last_event_id=3)),
    "a moment that no calendar has": lambda path: rewritten(path, manifest_with(made_ms=10**20)),
    "no revision": database_with("DELETE FROM alembic_version"),
    "two revisions": database_with("INSERT INTO alembic_version VALUES ('0001')"),
    "a table less": database_with("DROP TABLE claims"),
    "a column less": database_with("ALTER TABLE tenants DROP COLUMN suspended"),
    "an offering that is none": database_with("UPDATE nodes SET offering = '{'"),
    "a number that is none": database_with("UPDATE tenants SET created_ms = 'noon'"),
    "not there": lambda path: path.unlink(),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_backup_that_is_not_whole_is_refused_and_nothing_is_touched(
    quiet: tuple[World, Path], spoil: Callable[[Path], object]
) -> None:
    world, backup = quiet
    spoil(backup)
    before = state_of(world)
    with pytest.raises(PolyrayError) as refused:
        restore(world.settings, backup, clock=world.clock)
    assert refused.value.code in {Code.INVALID, Code.CONFLICT, Code.NOT_FOUND}
    assert refused.value.hint
    assert state_of(world) == before


def test_while_the_platform_runs_nothing_is_restored_but_all_can_be_tried(quiet: tuple[World, Path]) -> None:
    world, backup = quiet
    (world.settings.state_dir / "run").mkdir(exist_ok=True)
    supervisor = SupervisorLock(world.settings.state_dir / "run" / "supervisor.pid")
    assert supervisor.take()
    before = state_of(world)
    with pytest.raises(Conflict, match=r"the platform runs \(pid \d+\)") as refused:
        restore(world.settings, backup, clock=world.clock)
    assert "polyray down" in refused.value.hint
    report = restore(world.settings, backup, clock=world.clock, dry_run=True)
    assert report.gap.lost is not None
    assert report.gap.lost["workloads"].count == 1
    assert state_of(world) == before
    supervisor.release()


def test_the_backup_of_another_platform_is_refused_unless_it_is_meant(
    quiet: tuple[World, Path], tmp_path: Path
) -> None:
    world, _ = quiet
    reopen(world)
    auditor_of(world).look()
    other = World(tmp_path / "other" / "state")
    other.settle(60)
    backup = backed_up(other)
    world.store.close()
    with pytest.raises(Conflict, match="another history"):
        restore(world.settings, backup, clock=world.clock)
    report = went_back(world, backup)
    assert any("set aside" in line for line in report.told())
    assert auditor_of(world).verify().ok


def test_a_backup_is_not_overwritten_and_one_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "state")
    backup = backed_up(world)
    assert backup.stat().st_mode & 0o777 == 0o600
    before = backup.read_bytes()
    with pytest.raises(Conflict, match="is there already"):
        backed_up(world)
    for point in ("backup.copy.before", "portable.page.after", "backup.copy.after", "backup.place.before"):

        def full(name: str, point: str = point) -> None:
            if name == point:
                raise OSError(28, "No space left on device")

        with faultpoints.striking(full), pytest.raises(Unavailable, match="No space left"):
            make_backup(world.store, world.settings, backup, clock=world.clock, overwrite=True)
        assert backup.read_bytes() == before
        assert list(backup.parent.iterdir()) in ([backup, tmp_path / "state"], [tmp_path / "state", backup])


def test_a_backup_into_a_directory_is_named_after_the_time_and_one_into_none_is_not_found(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    nightly = tmp_path / "nightly"
    nightly.mkdir()
    made = make_backup(world.store, world.settings, nightly, clock=world.clock)
    assert [made.path] == list(nightly.glob("polyray-*.polyray-backup"))
    for target, backup in ((tmp_path / "none" / "one", None), (made.path, tmp_path / "none"), (made.path, nightly)):
        with pytest.raises(PolyrayError) as refused:
            if backup is None:
                make_backup(world.store, world.settings, target, clock=world.clock)
            else:
                restore(world.settings, backup, clock=world.clock, dry_run=True)
        assert refused.value.code is (Code.INVALID if backup == nightly else Code.NOT_FOUND)
        assert refused.value.hint


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_a_full_disk_is_told_as_such_wherever_it_comes_and_leaves_nothing(
    tmp_path: Path, tier: Tier, verb: str
) -> None:
    """Room for one page, for two, ...: until all fits."""
    world = World(tmp_path / "state")
    backup = backed_up(world)

    def body(disk: SmallDisk) -> None:
        target = disk.root / "state" if verb == "restore" else disk.root / "one.polyray-backup"
        settings = Settings(state_dir=target)
        if verb == "restore":
            prepare_state_dir(settings)
        refused = pages = 0
        while pages < 1000:
            disk.fill(free_pages=pages)
            before = sorted(disk.root.rglob("*"))
            try:
                if verb == "restore":
                    restore(settings, backup, clock=world.clock)
                else:
                    make_backup(world.store, world.settings, target, clock=world.clock)
                break
            except Unavailable as error:
                assert str(disk.root) in error.message, error
                assert "room" in error.hint, error
                refused += 1
            assert sorted(set(disk.root.rglob("*")) - {target / "run" / "supervisor.pid"}) == [
                path for path in before if path.name != "supervisor.pid"
            ]
            pages += tier.pick(quick=7, full=1)
        assert pages < 1000
        assert refused > 5

    on_small_disk(tmp_path / "disk", body)


def test_a_backup_that_others_can_read_is_restored_with_a_warning(quiet: tuple[World, Path]) -> None:
    world, backup = quiet
    report = restore(world.settings, backup, clock=world.clock, dry_run=True)
    assert not any("chmod" in line for line in report.told())
    backup.chmod(0o644)
    report = restore(world.settings, backup, clock=world.clock, dry_run=True)
    assert f"others can read {backup}, which holds secrets: chmod 600 {backup}" in report.told()


def test_no_private_key_is_in_a_backup(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    SigningKeys(world.settings.state_dir / "keys", "platform").all()
    with tarfile.open(backed_up(world)) as archive:
        assert {entry.name for entry in archive} <= {"manifest.json", "database.sqlite", "platform.json"}
    with gzip.open(tmp_path / "one.polyray-backup") as content:
        assert b"PRIVATE KEY" not in content.read()


# A crash at any step.
