"""Keeps the platform's time across restarts, and tells when the machine's clock was moved."""

from __future__ import annotations

import threading

import structlog

from polyray.core.steady_clock import STEPPED_MS, SteadyClock

log = structlog.get_logger(__name__)

EVERY_SECONDS = 10.0


class Timekeeper:
    """Writes down where `clock` is, every ten seconds, in a thread of its own."""

    def __init__(self, clock: SteadyClock) -> None:
        self._clock = clock
        self._stopping = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, nothing_lasts: bool) -> None:
        """End; where nothing lasts any longer, the next process may believe the wall clock."""
        self._stopping.set()
        self._thread.join(5.0)
        if nothing_lasts:
            self._clock.forget()

    def look(self) -> None:
        """Keep the time once, and tell a step of the machine's clock once."""
        try:
            self._clock.keep()
        except OSError as error:
            log.warning("time_not_kept", error=str(error))
        stepped = abs(self._clock.behind_ms()) >= STEPPED_MS
        if stepped and not self._told:
            log.warning("clock_was_moved", seconds=self._clock.behind_ms() / 1000)
        self._told = stepped

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            self.look()


def told(behind_ms: int) -> tuple[bool, str]:
    """Return whether the clocks agree, and what an operator is told."""
    if abs(behind_ms) < STEPPED_MS:
        return True, "in line with the machine's clock"
    way = "ahead of" if behind_ms > 0 else "behind"
    seconds = abs(behind_ms) // 1000
    hint = "durations and bills stay right; it is followed by a hundredth of the time that passes, or at once"
    hint += " by 'polyray down' and a new start"
    return False, f"the machine's clock was moved: it is {seconds} s {way} the platform's; {hint}"
