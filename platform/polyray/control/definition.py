"""The operator's definition in force: applied to the rows, and kept for the next start."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from polyray.core.clock import Clock
from polyray.core.durable import put_file
from polyray.core.platform_file import PlatformFile, load_platform_file
from polyray.store.engine import Store
from polyray.tenants.definitions import apply_definitions


class PlatformDefinition:
    """Holds the definition that was applied last, by whatever control plane of this state directory.

    Passwords are hashed into rows and not kept.
    """

    def __init__(self, store: Store, clock: Clock, path: Path) -> None:
        self._store = store
        self._clock = clock
        self._path = path
        self._current = PlatformFile()
        #: The file that `_current` was read from or written to.
        self._seen = _identity(path)
        self._lock = threading.Lock()

    def current(self) -> PlatformFile:
        """Return it; a file that another control plane has put in place since is read."""
        if _identity(self._path) != self._seen:
            with self._lock:
                self._read()
        return self._current

    def load(self, first: Path | None) -> None:
        """Take the definition that was kept; where there is none, apply the file `first`.

        Raises:
            Invalid: naming the field of the file that is wrong.
        """
        if self._path.exists():
            with self._lock:
                self._read()
        elif first is not None:
            self.apply(load_platform_file(first))

    def apply(self, definition: PlatformFile) -> list[str]:
        """Apply a definition and return what changed, a sentence each. Idempotent.

        The rows come first: a definition that was kept has been applied.
        """
        with self._lock:
            changes = apply_definitions(self._store, definition, now_ms=self._clock.now_ms())
            kept = definition.model_copy(update={"users": {}})
            put_file(self._path, kept.model_dump_json(indent=1).encode(), effect="file.platform")
            self._current, self._seen = kept, _identity(self._path)
        return changes

    def _read(self) -> None:
        """Files are put in place whole, so one of an identity never seen before is a whole one."""
        self._seen = _identity(self._path)
        if self._seen is not None:
            self._current = PlatformFile.model_validate(json.loads(self._path.read_text()))


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what tells one file from the next in its place; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
