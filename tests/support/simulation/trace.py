"""What happened in a world, line by line, and what the product logged beside it."""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import structlog

from polyray.core.clock import Clock
from polyray.core.errors import PolyrayError

KEPT_LINES = 60


class Trace:
    """Keeps the last lines. The digest of all steps (not of logs) is the same for the same seed.

    `who()` names the process that runs, `failed(error)` is told of an error that the product caught and cannot explain.
    """

    def __init__(self, clock: Clock, who: Callable[[], str], failed: Callable[[BaseException], None]) -> None:
        self._clock, self._who, self._failed = clock, who, failed
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._digest = hashlib.sha256()

    def tell(self, step: int, line: str) -> None:
        told = f"{step:6} {self._clock.monotonic():9.3f} {line}"
        self._digest.update(told.encode())
        self._lines.append(told)

    def hear(self, logger: object, name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        """Take a line of the product's log; this is the last of structlog's processors."""
        fields = " ".join(f"{key}={value}" for key, value in event.items() if key not in {"event", "exc_info"})
        self._lines.append(f"{'':17}{self._who()}: {event['event']} {fields}")
        if event.get("exc_info"):
            error = sys.exc_info()[1]
            self._lines.append(f"{'':17}{error!r}")
            if error is not None and not isinstance(error, PolyrayError):
                self._failed(error)
        raise structlog.DropEvent

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]

    def __str__(self) -> str:
        return "\n".join(self._lines)
