"""Going back to a backup, as tests tell it: on a world, with the steps that an operator takes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import func, select

from polyray.control.auditing import Auditor
from polyray.core.settings import Settings
from polyray.recovery.backup import make_backup
from polyray.recovery.report import Report
from polyray.recovery.restore import restore
from polyray.store import audit
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Event, Tenant, Workload
from polyray.tenants.definitions import apply_definitions
from support.world import World


def reopen(world: World) -> None:
    """A control plane that starts anew on the database of its settings."""
    world.store.close()
    world.store = Store(world.settings.store_url)
    migrate(world.store)
    with world.store.read() as session:
        is_new = session.scalar(select(func.count()).select_from(Tenant)) == 0
    if is_new:
        apply_definitions(world.store, world.platform, now_ms=world.clock.now_ms())
    auditor_of(world).begin()
    world.restart()


def auditor_of(world: World) -> Auditor:
    return Auditor(world.store, Anchors(world.settings.state_dir), world.clock, lambda: True)


def backed_up(world: World, name: str = "one") -> Path:
    target = world.settings.state_dir.parent / f"{name}.polyray-backup"
    make_backup(world.store, world.settings, target, clock=world.clock)
    return target


def went_back(world: World, backup: Path, *, overwrite: bool = True) -> Report:
    world.store.close()
    report = restore(world.settings, backup, clock=world.clock, overwrite=overwrite)
    reopen(world)
    return report


def events(store: Store) -> int:
    with store.read() as session:
        return session.scalar(select(func.count()).select_from(Event)) or 0


def rewritten(backup: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    with tarfile.open(backup) as archive:
        members = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    with tarfile.open(backup, "w:gz") as archive:
        for name, content in change(members).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def contents(settings: Settings) -> tuple[int, bool]:
    """Return how many workloads the database has, and whether it was restored."""
    store = Store(settings.store_url)
    migrate(store)
    with store.read() as session:
        workloads = session.scalar(select(func.count()).select_from(Workload)) or 0
        restored = session.scalar(select(func.count()).select_from(Event).where(Event.kind == audit.RESTORE)) or 0
    assert not audit.verify(store, Anchors(settings.state_dir).read()).findings
    store.close()
    return workloads, bool(restored)
