"""A run's output, read from files that its own code may have replaced or filled with anything. Bounded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyray.core.beneath import read_beneath
from polyray.core.layout import Layout

DEFAULT_LOG_BYTES = 2**20
MAX_LOG_BYTES = 8 * 2**20
MAX_RECORD_BYTES = 64 * 2**10
#: Read of the records file for one answer.
MAX_RECORDS_BYTES = 4 * 2**20
MAX_RECORDS = 5000


def read_file(layout: Layout, path: Path, *, offset: int, limit: int) -> tuple[bytes, int]:
    """Return at most `limit` bytes of a run's file from `offset`, and its size; nothing yet is empty.

    Raises:
        Conflict: if it, or a directory on the way, is a link or no plain file.
    """
    try:
        return read_beneath(layout.root, path.relative_to(layout.root).as_posix(), offset=offset, limit=limit)
    except FileNotFoundError:
        return b"", 0


@dataclass(frozen=True)
class Records:
    items: list[dict[str, Any]]
    #: Lines that were no JSON object, or too long.
    skipped: int
    #: Where to read on, in bytes.
    next_offset: int
    #: Whether there is more now.
    more: bool

    def encode(self) -> bytes:
        """Return them as JSON in ASCII: a record may hold half a surrogate pair, which UTF-8 cannot."""
        return json.dumps(vars(self)).encode()


def parse_records(data: bytes, *, offset: int, whole_file: bool) -> Records:
    """Return the records in `data`, which begins at a line's start, `offset` bytes into the file.

    A last line without its end is left for the next read: its writer may be in the middle of it. One that
    is longer already than any record is passed over, and so will be its rest.
    """
    items: list[dict[str, Any]] = []
    skipped = at = 0
    while at < len(data) and len(items) < MAX_RECORDS:
        end = data.find(b"\n", at)
        if end < 0:
            if len(data) - at > MAX_RECORD_BYTES:
                skipped, at = skipped + 1, len(data)
            break
        line = data[at:end]
        record = _record(line)
        if record is not None:
            items.append(record)
        elif line.strip():
            skipped += 1
        at = end + 1
    more = not whole_file or len(items) == MAX_RECORDS
    return Records(items, skipped, offset + at, more)


def _record(line: bytes) -> dict[str, Any] | None:
    if len(line) > MAX_RECORD_BYTES:
        return None
    try:
        content = json.loads(line, parse_constant=str, parse_float=_finite, parse_int=_bounded)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _finite(text: str) -> float | str:
    """JSON has no NaN and no infinity, a diverged loss has: they stay readable as text."""
    number = float(text)
    return number if math.isfinite(number) else text


def _bounded(text: str) -> int | str:
    return int(text) if len(text) <= 18 else text
