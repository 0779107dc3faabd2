"""A run's log, read by offset from the segments in which it is kept; what is missing between them is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polyray.core.beneath import list_beneath, read_beneath
from polyray.core.layout import Layout
from polyray.tenants.sandboxes.driver_log import segment_start


@dataclass(frozen=True)
class Piece:
    data: bytes
    #: Where to read on.
    next_offset: int
    #: Of all that was ever written, in bytes.
    size: int
    #: So many bytes of the log are not kept here; `data` says so in their place.
    cut: int = 0


def read_log(layout: Layout, path: Path, *, offset: int, limit: int) -> Piece:
    """Return at most `limit` bytes of the log at `path` from `offset`; nothing yet is empty.

    Raises:
        Conflict: if a part of it, or a directory on the way, is a link or no plain file.
    """
    log = path.relative_to(layout.root)
    segments = _segments(layout.root, log)
    size = max((start + length for start, length in segments), default=0)
    for index, (start, length) in enumerate(segments):
        end = min(start + length, *(later for later, _ in segments[index + 1 : index + 2]), 2**62)
        if start <= offset < end or (start == offset and length == 0):
            name = log if start == 0 else log.with_name(f"{log.name}.{start}")
            try:
                data, _ = read_beneath(
                    layout.root, name.as_posix(), offset=offset - start, limit=min(limit, end - offset)
                )
            except FileNotFoundError:  # removed just now
                break
            return Piece(data, offset + len(data), size)
    later = min((start for start, _ in segments if start > offset), default=None)
    if later is None:
        return Piece(b"", offset, size)
    cut = later - offset
    return Piece(b"\n[... %d bytes of this log were not kept ...]\n" % cut, later, size, cut)


def _segments(root: Path, log: Path) -> list[tuple[int, int]]:
    """Return (start, bytes) of each segment, the first first."""
    try:
        names = list_beneath(root, log.parent.as_posix())
    except FileNotFoundError:
        return []
    found = ((segment_start(name, log.name), length) for name, length in names)
    return sorted((start, length) for start, length in found if start is not None)
