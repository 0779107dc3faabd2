"""Files that are there whole or not at all, and outlast the machine's power."""

from __future__ import annotations

import os
from pathlib import Path

from polyray.core.faultpoints import outside


def put_file(path: Path, content: bytes, *, effect: str) -> None:
    """Put a file of mode 0600 in place, instead of what is there; fault points `EFFECT` surround that moment.

    Raises:
        OSError: if it cannot be written; then what was there stays.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with outside(effect):
        partial.replace(path)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
