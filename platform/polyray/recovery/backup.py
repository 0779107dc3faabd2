"""`polyray backup`: a consistent copy of what the platform knows, made while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from polyray.core.clock import Clock
from polyray.core.errors import Code, Conflict, PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.core.settings import Settings
from polyray.recovery.archive import digest_of, working_directory, write_archive
from polyray.recovery.manifest import DATABASE, PLATFORM, Manifest
from polyray.recovery.portable import long_read, make_portable, require_newest
from polyray.recovery.room import room_in
from polyray.store import chain
from polyray.store.engine import Store

SUFFIX = ".polyray-backup"


@dataclass(frozen=True)
class Made:
    path: Path
    size_bytes: int
    seconds: float
    manifest: Manifest


def default_name(now_ms: int) -> str:
    return f"polyray-{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"


def require_database(settings: Settings) -> None:
    """Opening SQLite would make an empty one, and a backup of nothing is worse than none.

    Raises:
        PolyrayError: code `not_found`.
    """
    path = settings.state_dir / "polyray.db"
    if not settings.database_url and not path.exists():
        hint = "name the state directory with --state-dir, or PostgreSQL with POLYRAY_DATABASE_URL"
        raise PolyrayError(Code.NOT_FOUND, f"there is no database {path}", hint)


def make_backup(store: Store, settings: Settings, target: Path, *, clock: Clock, overwrite: bool = False) -> Made:
    """Write a backup of a database and of the platform's definition, as they are at one moment.

    In a directory the file is named after the time.

    Raises:
        Conflict: if the file is there already, or the database has another version's schema.
        PolyrayError: code `not_found`, if there is no directory for it.
        Unavailable: if the database does not answer, or the file cannot be written.
    """
    began = time.monotonic()
    target = target.absolute()
    if target.is_dir():
        target /= default_name(clock.now_ms())
    if target.exists() and not overwrite:
        raise Conflict(f"{target} is there already", hint="name another file, or overwrite it with --yes")
    if not target.parent.is_dir():
        raise PolyrayError(Code.NOT_FOUND, f"there is no directory {target.parent}", "make it first")
    with (
        room_in(target.parent, way_out="make room, or name another place"),
        working_directory(target.parent, f".{target.name}.making") as directory,
    ):
        members = {DATABASE: directory / DATABASE}
        try:
            # The rows come before the definition when it is applied: an older one beside newer rows is nothing new.
            definition = _definition(settings)
            with store.read() as session:
                long_read(session)
                revision = require_newest(session)
                head = chain.head(session)
                with outside("backup.copy"):
                    counts = make_portable(session, members[DATABASE])
            if definition is not None:
                members[PLATFORM] = directory / PLATFORM
                members[PLATFORM].write_bytes(definition)
        except OSError as error:
            raise Unavailable(f"the backup cannot be written: {error}", hint="name a place with room") from error
        manifest = Manifest(
            polyray=version("polyray"),
            schema_revision=revision,
            source="postgresql" if store.on_postgresql else "sqlite",
            made_ms=clock.now_ms(),
            last_event_id=head.event_id,
            last_chain=head.chain,
            rows=counts,
            members={name: digest_of(path) for name, path in members.items()},
        )
        write_archive(target, manifest, members, overwrite=overwrite)
    return Made(target, target.stat().st_size, time.monotonic() - began, manifest)


def told(made: Made, settings: Settings) -> list[str]:
    """Say what was made, and what is not in it."""
    at = f"{datetime.fromtimestamp(made.manifest.made_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    rows: Mapping[str, int] = made.manifest.rows
    return [
        f"{made.path}: {made.size_bytes / 2**20:.2f} MiB in {made.seconds:.1f} s",
        f"as of event {made.manifest.last_event_id} ({at}): {sum(rows.values())} rows, {rows['workloads']} workloads",
        f"not in it: data, models, logs and checkpoints in {settings.store_root}; private keys; run-time state",
        "copy that directory after the backup, for example with 'cp -a': files in it are not changed, only added",
    ]


def _definition(settings: Settings) -> bytes | None:
    try:
        return (settings.state_dir / "platform.json").read_bytes()
    except FileNotFoundError:
        return None
