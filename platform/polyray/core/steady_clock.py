"""The platform's own time: UTC that goes on evenly whatever is done to the machine's clock.

Leases, nodes and bills are intervals between two readings. An operator, a time server or a resumed machine
may step the wall clock by an hour in the middle of one; then this clock goes on from where it was, and is
brought in line with the wall clock by at most `SLEW` of the time that passes. It is for durations and
records. What others judge by their own clock (a token's times) is told in wall time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from polyray.core.clock import SystemClock
from polyray.core.durable import put_file

#: A lasting difference of an hour is gone after 100 hours, in which no duration is wrong by more than a hundredth.
SLEW = 0.01
#: A difference that is worth an operator's word.
STEPPED_MS = 2_000


class SteadyClock(SystemClock):
    """Implements `Clock`. Thread-safe.

    `kept` is where the next process of this boot finds how far this one was from the wall clock, so that a
    restart is no step either; `keep` writes it, `forget` removes it when nothing lasts any longer.
    """

    def __init__(
        self,
        kept: Path,
        *,
        wall_ms: Callable[[], float] = lambda: time.time_ns() / 1e6,
        uptime_ms: Callable[[], float] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6,
        boot_id: str | None = None,
    ) -> None:
        self._kept = kept
        self._wall_ms = wall_ms
        self._uptime_ms = uptime_ms
        self._boot_id = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._lock = threading.Lock()
        self._at = uptime_ms()
        #: Our time less the machine's uptime, in milliseconds.
        found = self._found()
        self._offset = wall_ms() - self._at if found is None else found

        #: The offset that `kept` says.
        self._written: float | None = None

    def now_ms(self) -> int:
        with self._lock:
            at = self._uptime_ms()
            most = (at - self._at) * SLEW
            behind = self._wall_ms() - at - self._offset
            self._offset += max(-most, min(behind, most))
            self._at = at
            return int(at + self._offset)

    def behind_ms(self) -> int:
        """Return how far the wall clock is ahead of this one; negative if it is behind."""
        return round(self._wall_ms() - self.now_ms())

    def keep(self) -> None:
        """Write down where this clock is, if it is not where it was written to be."""
        with self._lock:
            offset = self._offset
        if self._written is None or abs(offset - self._written) >= 1:
            told = json.dumps({"boot_id": self._boot_id, "offset_ms": offset})
            put_file(self._kept, told.encode(), effect="file.clock")
            self._written = offset

    def forget(self) -> None:
        self._kept.unlink(missing_ok=True)
        self._written = None

    def _found(self) -> float | None:
        """Return the offset that an earlier process of this boot kept."""
        try:
            kept = json.loads(self._kept.read_text())
            return float(kept["offset_ms"]) if kept["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
