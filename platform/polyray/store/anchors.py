"""Anchors: how far the chain of events had come at a time, kept in a file outside the database.

A database that was put back, or whose history was written anew, does not agree with its anchors. The file is
JSON lines, only ever appended to; a line that a crash tore is passed over. When it is full it becomes
`NAME.1`, and the one before that goes.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from polyray.core.durable import sync_directory
from polyray.core.errors import Unavailable
from polyray.core.faultpoints import outside
from polyray.core.private import private_directory

#: Some 8,000 anchors: a week of one a minute.
MAX_BYTES = 2**20
_HASH = re.compile(r"[0-9a-f]{64}")
#: Numbers beyond these are no event's, and no year's that can be told.
_MAX_ID, _MAX_MS = 2**63 - 2, 250_000_000_000_000


@dataclass(frozen=True)
class Anchor:
    event_id: int
    chain: str
    at_ms: int


class Anchors:
    """The anchors of one state directory. Several processes may append."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "audit" / "anchors.jsonl"

    @property
    def _older(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

    def read(self) -> tuple[Anchor, ...]:
        """Return all anchors, in the order in which they were made.

        Raises:
            Unavailable: if the file is there and cannot be read.
        """
        found = []
        for path in (self._older, self.path):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Unavailable(f"the anchors cannot be read: {error}", hint=f"make {path} readable") from error
            found += [anchor for line in content.splitlines() if (anchor := _parsed(line)) is not None]
        return tuple(found)

    def newest(self) -> Anchor | None:
        """Return the anchor that is furthest along the chain."""
        return max(self.read(), key=lambda anchor: anchor.event_id, default=None)

    def append(self, anchor: Anchor) -> None:
        """Add an anchor; it is on the disk when this returns.

        Raises:
            Unavailable: if it cannot be written; try again later.
        """
        line = json.dumps(asdict(anchor), separators=(",", ":")).encode() + b"\n"
        try:
            with outside("anchor.append"):
                self._write(line)
        except OSError as error:
            raise Unavailable(f"the anchor cannot be written: {error}", hint=f"make room for {self.path}") from error

    def set_aside(self, suffix: str) -> None:
        """Keep the anchors of another history under other names, and begin without any."""
        for path in (self._older, self.path):
            if path.exists():
                path.replace(path.with_name(f"{path.name}.{suffix}"))

    def _write(self, line: bytes) -> None:
        private_directory(self.path.parent)
        if self.path.exists() and self.path.stat().st_size + len(line) > MAX_BYTES:
            self.path.replace(self._older)
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # what a crash tore stays a line of its own
            if os.write(descriptor, line) != len(line):
                raise OSError("the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self.path.parent)


def _parsed(line: bytes) -> Anchor | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match content:
        case {"event_id": int() as event_id, "chain": str() as chain, "at_ms": int() as at_ms} if (
            _HASH.fullmatch(chain) and 0 < event_id <= _MAX_ID and 0 <= at_ms <= _MAX_MS
        ):
            return Anchor(event_id, chain, at_ms)
    return None
