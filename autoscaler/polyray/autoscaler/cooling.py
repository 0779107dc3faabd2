"""Offerings that failed lately and rest before they are tried again."""

from __future__ import annotations

import threading

from polyray.core.clock import Clock

FIRST_SECONDS = 30
MOST_SECONDS = 600


class Cooling:
    """In memory: after a restart everything may be tried once. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Monotonic seconds until when each rests.
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._mutex = threading.Lock()

    def failed(self, offering: str, retry_after_seconds: int = FIRST_SECONDS) -> None:
        """Let it rest: `retry_after_seconds`, twice as long after each further failure, 10 min at most."""
        with self._mutex:
            failures = self._failures[offering] = self._failures.get(offering, 0) + 1
            seconds = min(retry_after_seconds * 2 ** min(failures - 1, 16), max(MOST_SECONDS, retry_after_seconds))
            self._until[offering] = self._clock.monotonic() + seconds

    def succeeded(self, offering: str) -> None:
        with self._mutex:
            self._failures.pop(offering, None)
            self._until.pop(offering, None)

    def offerings(self) -> tuple[tuple[str, int], ...]:
        """Return the offerings that rest, with when they may be tried again (milliseconds since the epoch)."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        with self._mutex:
            return tuple(
                sorted(
                    (name, now_ms + round((until - now) * 1000)) for name, until in self._until.items() if until > now
                )
            )

    def rests(self, offering: str) -> bool:
        return any(name == offering for name, _ in self.offerings())
