"""`python -m polyray.recovery backup|restore|doubt`: what `polyray backup`, `restore` and a hard `down` run.

The result is JSON on standard output; errors are told on standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from polyray.cli.render import show_error
from polyray.core import faultpoints
from polyray.core import log as logs
from polyray.core.clock import SystemClock
from polyray.core.errors import PolyrayError
from polyray.core.settings import Settings, load_settings
from polyray.recovery import backup
from polyray.recovery.doubt import doubt
from polyray.recovery.portable import require_newest
from polyray.recovery.restore import restore
from polyray.store.engine import Store


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="polyray-recovery", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("backup")
    making.add_argument("file", type=Path, nargs="?")
    making.add_argument("--yes", action="store_true")
    verbs.add_parser("doubt")
    going_back = verbs.add_parser("restore")
    going_back.add_argument("file", type=Path)
    going_back.add_argument("--yes", action="store_true")
    going_back.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(argv)
    try:
        faultpoints.arm()
        settings = load_settings(state_dir=given.state_dir)
        logs.configure("WARNING", component="recovery")
        if given.verb == "backup":
            answer = _backup(settings, given.file, overwrite=given.yes)
        elif given.verb == "doubt":
            answer = _doubt(settings)
        else:
            report = restore(
                settings, given.file.absolute(), clock=SystemClock(), dry_run=given.dry_run, overwrite=given.yes
            )
            answer = report.as_dict()
    except PolyrayError as error:
        return show_error(error)
    print(json.dumps(answer))
    return 0


def _backup(settings: Settings, file: Path | None, *, overwrite: bool) -> dict[str, object]:
    clock = SystemClock()
    backup.require_database(settings)
    store = Store(settings.store_url)
    try:
        target = file or Path(backup.default_name(clock.now_ms()))
        made = backup.make_backup(store, settings, target, clock=clock, overwrite=overwrite)
    finally:
        store.close()
    return {
        "path": str(made.path),
        "size_bytes": made.size_bytes,
        "seconds": round(made.seconds, 3),
        "manifest": made.manifest.model_dump(),
        "told": backup.told(made, settings),
    }


def _doubt(settings: Settings) -> dict[str, object]:
    """What ran when the platform was killed is held against the core by the next control plane."""
    backup.require_database(settings)
    store = Store(settings.store_url)
    try:
        with store.write() as session:
            require_newest(session)
            doubt(session, "the platform was killed, and ended without draining")
    finally:
        store.close()
    return {}


if __name__ == "__main__":
    sys.exit(main())
