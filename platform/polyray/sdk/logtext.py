"""A log's bytes as lines for people.

Bytes arrive in pieces that end anywhere. Bad UTF-8 is replaced, a character cut by a piece's end is not;
of a line that a progress bar rewrote with carriage returns the last state is kept; a line has a bound.
"""

from __future__ import annotations

import codecs

MAX_LINE = 64 * 1024


class LogLines:
    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._max_line = max_line

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` ends, without their newlines."""
        self._pending += self._decoder.decode(data)
        *whole, self._pending = self._pending.split("\n")
        lines = [piece for line in whole for piece in self._bounded(line)]
        if len(self._pending) > self._max_line:
            # An endless line is given out in pieces; a rewritten one shrinks to its last state first.
            self._pending = _last_state(self._pending)
            while len(self._pending) > self._max_line:
                lines.append(self._pending[: self._max_line])
                self._pending = self._pending[self._max_line :]
        return lines

    def end(self) -> list[str]:
        """Return what is left after the last byte: at most one line, in pieces."""
        rest = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
        return self._bounded(rest) if rest else []

    def _bounded(self, line: str) -> list[str]:
        text = _last_state(line)
        return [text[i : i + self._max_line] for i in range(0, len(text), self._max_line)] or [""]


def _last_state(line: str) -> str:
    """Return what a terminal would show in the end: the text after the last carriage return that text follows."""
    return line.rstrip("\r").rpartition("\r")[2]
