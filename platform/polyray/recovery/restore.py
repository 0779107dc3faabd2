"""`polyray restore`: goes back to a backup, and says what that costs.

Everything is checked, and the new database made whole, before anything that is there is touched. What cannot be
known from the backup is left to the next start: leases are held against the core, machines against their
provider, as after any crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.orm import Session

from polyray.core.clock import Clock
from polyray.core.durable import put_file
from polyray.core.errors import Conflict
from polyray.core.faultpoints import outside
from polyray.core.layout import Layout
from polyray.core.settings import Settings
from polyray.identity.key_epoch import raise_key_epoch
from polyray.recovery import gap as gaps
from polyray.recovery import inventory, placing, portable, revocations
from polyray.recovery.archive import extract, working_directory
from polyray.recovery.checks import check_database, contradiction
from polyray.recovery.doubt import doubt
from polyray.recovery.manifest import DATABASE, PLATFORM, Manifest
from polyray.recovery.report import Report, time_of
from polyray.recovery.revocations import fence_leaders, leader_epoch
from polyray.recovery.room import room_in
from polyray.store import audit, chain
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.steps import note
from polyray.store.tables import Event
from polyray.supervise.control import prepare_state_dir
from polyray.supervise.leftovers import find_leftovers
from polyray.supervise.lock import SupervisorLock, running_supervisor

#: Above any epoch that a leader may have had which nobody can ask any more.
UNKNOWN_EPOCHS = 1_000_000


def restore(
    settings: Settings, source: Path, *, clock: Clock, dry_run: bool = False, overwrite: bool = False
) -> Report:
    """Go back to a backup. A dry run checks and compares everything, and changes nothing.

    Raises:
        Conflict: if the platform runs, the backup is of a newer version, another history is anchored here, or
            a PostgreSQL database is not empty; the last two may be overridden by `overwrite`.
        Invalid: if the backup is not whole.
        PolyrayError: code `not_found`, if there is no such file.
        Unavailable: if there is no room, or the database does not answer.
    """
    prepare_state_dir(settings)
    with (
        room_in(settings.state_dir, way_out="make room there, and restore again"),
        _alone(settings, dry_run),
        working_directory(settings.state_dir, _staging(dry_run)) as staging,
    ):
        manifest = extract(source, staging, known_revisions=portable.known_revisions())
        check_database(staging / DATABASE, manifest)
        place = placing.place_of(settings, clock, overwrite=overwrite, dry_run=dry_run)
        anchors = Anchors(settings.state_dir)
        return _Work(settings, clock, source, staging, manifest, place, anchors, dry_run, overwrite).done()


def _staging(dry_run: bool) -> str:
    return ".restoring-dry" if dry_run else ".restoring"


@contextmanager
def _alone(settings: Settings, dry_run: bool) -> Iterator[None]:
    """Be the only one that works with the state directory: nothing of the platform runs, or is started meanwhile.

    Raises:
        Conflict: naming what runs.
    """
    if dry_run:
        yield
        return
    path = settings.state_dir / "run" / "supervisor.pid"
    lock = SupervisorLock(path)
    if not lock.take():
        running = running_supervisor(path)
        pid = f" (pid {running.pid})" if running else ""
        raise Conflict(f"the platform runs{pid}", hint="stop it with 'polyray down', then restore")
    try:
        left = find_leftovers(settings.state_dir, settings.ray_dir, ()).processes
        if left:
            named = ", ".join(f"{process.pid} ({name})" for process, name in left[:5])
            raise Conflict(f"processes of the platform run: {named}", hint="end them with 'polyray down', then restore")
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class _Work:
    settings: Settings
    clock: Clock
    source: Path
    staging: Path
    manifest: Manifest
    place: placing.SQLiteFile | placing.PostgreSQLDatabase
    anchors: Anchors
    dry_run: bool
    overwrite: bool

    def done(self) -> Report:
        now_ms = self.clock.now_ms()
        stamp = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}-{now_ms % 1000:03}"
        path = "" if self.dry_run else str(self.settings.state_dir / f"restore-report-{stamp}.json")
        staged = Store(f"sqlite:///{self.staging / DATABASE}")
        try:
            with self.place.replaced() as old:
                differs = self._differs(old)
                report = self._prepared(staged, old, now_ms, path, differs)
        finally:
            staged.close()
        if self.dry_run:
            return report
        portable.settle_file(self.staging / DATABASE)
        kept = placing.writing(lambda: self._put(report, f"replaced-{stamp}", bool(differs)))
        return replace(report, replaced=kept)

    def _differs(self, old: Store | None) -> str:
        """Return how the backup is of another history than the one here; empty if it is of the same.

        Raises:
            Conflict: if it is of another, and that was not allowed.
        """
        differs = contradiction(self.staging / DATABASE, self.anchors.read())
        if old is not None and not differs:
            with old.read() as replaced:
                event = replaced.get(Event, self.manifest.last_event_id)
            if event is not None and event.chain != self.manifest.last_chain:
                differs = f"its event {event.event_id} is not the one of the database here"
        if differs and not (self.overwrite or self.dry_run):
            hint = "is it another platform's, or was it changed? --yes restores it all the same"
            raise Conflict(f"the backup is of another history: {differs}", hint=hint)
        return differs

    def _prepared(self, staged: Store, old: Store | None, now_ms: int, path: str, differs: str) -> Report:
        """Make the new database what it must be before anybody uses it, and report."""
        anchored = [] if differs else [anchor.event_id for anchor in self.anchors.read()]
        layout = Layout(self.settings.store_root)
        with staged.write() as new:
            restored = inventory.known(new)
            files = inventory.files(new, layout)
            if old is None:
                lost, kept = gaps.lost_events(self.manifest.last_event_id, anchored), list[str]()
                found = gaps.compare(restored, None, files)
                epoch = leader_epoch(new) + UNKNOWN_EPOCHS
            else:
                with old.read() as replaced:
                    successor = self._went_on(replaced)
                    seen = [*anchored, chain.head(replaced).event_id] if successor else anchored
                    lost = gaps.lost_events(self.manifest.last_event_id, seen)
                    found = gaps.compare(restored, inventory.known(replaced), files)
                    kept = revocations.carry_over(replaced, new, is_successor=successor, now_ms=now_ms)
                    epoch = max(leader_epoch(new), leader_epoch(replaced)) + 1
            warnings = self._warnings(old is not None, differs)
            revocations.end_logins(new)
            doubt(new, "the platform was restored from a backup")
            raise_key_epoch(new, max(now_ms, self._newest_key_ms() + 1), by="restore")
            fence_leaders(new, epoch)
            if lost is not None:
                chain.skip_to(new, lost.last + 1)
            reason = f"restored from a backup of {time_of(self.manifest.made_ms)}, event {self.manifest.last_event_id}"
            reason += f"; lost: {lost}" if lost else "; what came after it is not known" if old is None else ""
            entity = lost.entity_id if lost else "none"
            note(new, audit.RESTORE, entity, tenant=None, now_ms=now_ms, reason=reason)
        return Report(self.manifest, self.dry_run, now_ms, lost, found, tuple(kept), tuple(warnings), "", path)

    def _put(self, report: Report, keep_as: str, set_anchors_aside: bool) -> str:
        """Put everything in place. The report comes first: after a crash it is what tells of the gap."""
        put_file(Path(report.path), json.dumps(report.as_dict(), indent=1).encode(), effect="restore.report")
        placing.forget_routes(self.settings.state_dir / "run")
        if set_anchors_aside:
            with outside("restore.anchors"):
                self.anchors.set_aside(keep_as)
        kept = self.place.put(self.staging / DATABASE, keep_as)
        placing.put_definition(self.settings.state_dir, self.staging / PLATFORM, keep_as)
        return kept

    def _went_on(self, replaced: Session) -> bool:
        """Return whether the replaced database went on from the backup."""
        if not self.manifest.last_event_id:
            return False
        event = replaced.get(Event, self.manifest.last_event_id)
        return event is not None and event.chain == self.manifest.last_chain

    def _newest_key_ms(self) -> int:
        made = [path.name.split("-")[1] for path in (self.settings.state_dir / "keys").glob("*-*-*.pem")]
        return max((int(each) for each in made if each.isdecimal()), default=0)

    def _warnings(self, has_old: bool, differs: str) -> list[str]:
        told = ["all tokens and logins are dead after it: log in again with 'polyray login'"]
        if self.source.stat().st_mode & 0o077:
            told.append(f"others can read {self.source}, which holds secrets: chmod 600 {self.source}")
        if self.place.unreadable:
            told.append(f"the replaced database cannot be read: {self.place.unreadable}")
        if not has_old:
            since = f"what was revoked since {time_of(self.manifest.made_ms)} is not known"
            what = (
                "look through 'polyray key ls', revoke with 'polyray key revoke', and apply the platform's file again"
            )
            told.append(f"{since}: {what} (accounts, passwords, members)")
        if differs:
            told.append(f"the backup is of another history ({differs}): the anchors here were set aside")
        return told
