"""Time, passed in.

Wall time is integer milliseconds since the epoch, UTC; leases and back-off use monotonic seconds, which
no step of the wall clock can move.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Return seconds that only grow."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class Stopwatch:
    """How long things have lasted, each under its key, by monotonic time: no step of the wall clock ends anything.

    In memory: what a process finds at its start has lasted as long as the wall clock says. Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Key -> since when by the wall clock (ms), and the monotonic seconds that were taken for it.
        self._began: dict[str, tuple[int, float]] = {}

    def lasted_ms(self, key: str, since_ms: int) -> int:
        """Return for how long what began at `since_ms` has lasted; never negative.

        What is found to have begun later than it was told before has lasted so much less, and never longer.
        """
        now = self._clock.monotonic()
        since, began = self._began.get(key) or (since_ms, now - max(self._clock.now_ms() - since_ms, 0) / 1000)
        began = min(began + max(since_ms - since, 0) / 1000, now)
        self._began[key] = (since_ms, began)
        return round((now - began) * 1000)

    def forget(self, key: str) -> None:
        self._began.pop(key, None)


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 1_790_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an operator or NTP would."""
        self._now_ms += round(seconds * 1000)
