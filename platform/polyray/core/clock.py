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
