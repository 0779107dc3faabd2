"""A limit on failed attempts, so that passwords and short codes cannot be tried out."""

from __future__ import annotations

import threading
from collections import deque

from polyray.core.clock import Clock

MAX_FAILURES = 10
WINDOW_SECONDS = 300.0
#: Names remembered at once; the oldest are forgotten first.
_MAX_KEYS = 10_000


class FailedAttempts:
    """Counts failures by key within a sliding window. Kept in memory: a restart forgives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def blocked(self, key: str) -> bool:
        with self._lock:
            return len(self._recent(key)) >= MAX_FAILURES

    def failed(self, key: str) -> None:
        with self._lock:
            times = self._recent(key)
            times.append(self._clock.monotonic())
            self._failures.pop(key, None)
            self._failures[key] = times
            while len(self._failures) > _MAX_KEYS:
                self._failures.pop(next(iter(self._failures)))

    def _recent(self, key: str) -> deque[float]:
        times = self._failures.get(key, deque(maxlen=MAX_FAILURES))
        while times and times[0] <= self._clock.monotonic() - WINDOW_SECONDS:
            times.popleft()
        return times
