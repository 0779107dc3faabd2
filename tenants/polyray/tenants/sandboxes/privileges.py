"""Which user a slice of grade `process` runs as."""

from __future__ import annotations

import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Uid:
    """The uid to drop to; None keeps the platform's own, for the reason in `note`."""

    number: int | None
    note: str = ""


def uid_for(uid: int, directory: Path, python: str) -> Uid:
    """Drop root where the tenant's uid can run this interpreter and reach its directory."""
    if os.geteuid() != 0:
        return Uid(None)
    if not _can_run(uid, python):
        return Uid(
            None,
            f"Slices run as root, since other users cannot read the interpreter {python};"
            " install the platform where they can, such as /opt.",
        )
    if not _can_reach(uid, directory):
        return Uid(
            None,
            f"Slices run as root, since other users cannot reach {directory}; the state directory is private"
            " (stronger grades bind what a slice needs).",
        )
    return Uid(uid)


@functools.lru_cache(maxsize=1024)
def _can_run(uid: int, python: str) -> bool:
    return _succeeds(uid, [python, "-m", "polyray.tenants.sandboxes.privileges"])


def _can_reach(uid: int, directory: Path) -> bool:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return _succeeds(uid, ["/bin/sh", "-c", 'cd -- "$0"', str(existing)])


def _succeeds(uid: int, argv: list[str]) -> bool:
    try:
        done = subprocess.run(
            argv,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            user=uid,
            group=uid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
