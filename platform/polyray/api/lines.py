"""A program's output as lines of text, from bytes that may be anything.

Bytes that are no UTF-8 are replaced; a character cut at the end of a read waits for its other half; a
carriage return starts the line again, as on a terminal; a line without end is cut at a bound and says how
much was left out.
"""

from __future__ import annotations

import codecs

#: Bytes kept of one line.
MAX_LINE_BYTES = 64 * 2**10


class Lines:
    """Takes bytes as they come, gives whole lines without their ends. Holds at most one line's bound."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._line = bytearray()
        self._left_out = 0
        #: The last byte was a carriage return: what comes next starts the line again, unless it ends it.
        self._carriage = False
        self.fed_bytes = 0
        #: Bytes fed before the line that is not complete yet: where to read on after a break.
        self.complete_bytes = 0

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            self._append(piece)
            lines.append(self._text(final=True))
            self._start_again()
            self._carriage = False
        if ended:
            self.complete_bytes = self.fed_bytes + len(data) - len(rest)
        self.fed_bytes += len(data)
        self._append(rest)
        return lines

    def partial(self) -> str:
        """Return what there is of the line that is not complete yet."""
        return self._text()

    def flush(self) -> list[str]:
        """Return the last line if it has no end, as at the end of a file."""
        last = [self._text(final=True)] if self._line or self._left_out else []
        self._start_again()
        self.complete_bytes = self.fed_bytes
        return last

    def _append(self, piece: bytes) -> None:
        if not piece:
            return
        shown = piece.rstrip(b"\r")
        if shown:
            _, carriage, last = shown.rpartition(b"\r")
            if carriage or self._carriage:
                self._start_again()
            room = self._max - len(self._line)
            self._line += last[:room]
            self._left_out += max(len(last) - room, 0)
        self._carriage = piece.endswith(b"\r")

    def _start_again(self) -> None:
        self._line.clear()
        self._left_out = 0

    def _text(self, *, final: bool = False) -> str:
        cut = bool(self._left_out)
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._line), final and not cut)
        return f"{text}… [{self._left_out} bytes more]" if cut else text
