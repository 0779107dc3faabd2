"""A driver's log on disk: all of it while it is short; of one without end its beginning and its end.

It is written in segments, `driver.log` and then `driver.log.START`, where START is how many bytes were written
before it. So an offset into the log means the same for ever: a reader that comes to where a segment was removed
knows how much is missing. Of the standard library alone, for the program that is a slice's init.
"""

from __future__ import annotations

import os
from pathlib import Path

#: A log's limit is shared by so many segments: the first, which stays, and the newest ones.
SEGMENTS = 4


def segment_start(name: str, log_name: str) -> int | None:
    """Return the offset at which a file's part of the log begins; None if it is no part of it."""
    if name == log_name:
        return 0
    digits = name.removeprefix(f"{log_name}.")
    valid = name != digits and digits.isascii() and digits.isdigit() and len(digits) <= 18 and digits[0] != "0"
    return int(digits) if valid else None


class DriverLog:
    """Appends to the log at `path`, and keeps it within `limit_bytes`. A new one goes on where the last one ended.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._segment_bytes = max(limit_bytes // SEGMENTS, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._starts = self._found() or [0]
        self._fd = self._open(self._starts[-1])
        self._size = os.fstat(self._fd).st_size
        #: Something is missing at the end of the log.
        self._gap = False

    def write(self, text: bytes) -> None:
        """Append, or drop what cannot be written: a full disk is no reason to end the slice."""
        if self._gap:
            text = b"\n[here the log could not be written]\n" + text
        try:
            while text:
                if self._size >= self._segment_bytes:
                    self._begin_segment()
                written = os.write(self._fd, text[: self._segment_bytes - self._size])
                self._size += written
                text = text[written:]
            self._gap = False
        except OSError:
            self._gap = True

    def _begin_segment(self) -> None:
        start = self._starts[-1] + self._size
        fd = self._open(start)
        os.close(self._fd)
        self._fd, self._size = fd, 0
        self._starts.append(start)
        while len(self._starts) > SEGMENTS:
            self._file(self._starts.pop(1)).unlink(missing_ok=True)

    def _open(self, start: int) -> int:
        return os.open(self._file(start), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _file(self, start: int) -> Path:
        return self._path if start == 0 else self._path.with_name(f"{self._path.name}.{start}")

    def _found(self) -> list[int]:
        starts = (segment_start(name, self._path.name) for name in os.listdir(self._path.parent))
        return sorted({0, *(start for start in starts if start is not None)})
