"""Directories that are made whole beside their place, and then moved into it: what a crash left of one goes later."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_PREFIX = ".arriving-"
#: Longer than any publishing takes.
STALE_SECONDS = 24 * 3600


def arriving(beside: Path, *, now: Callable[[], float] = time.time) -> Path:
    """Return a new directory in `beside`, 0700, after removing those that were begun over a day ago."""
    beside.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in beside.glob(f"{_PREFIX}*"):
        try:
            stale = now() - left.lstat().st_mtime > STALE_SECONDS
        except FileNotFoundError:
            continue
        if stale:
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=beside))
