"""Waiting for what other threads and processes do: polled, and bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, seconds: float = 20.0, every: float = 0.01, what: str = "") -> None:
    """Return once `condition` holds.

    Raises:
        AssertionError: if it does not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or 'the condition'} did not come true within {seconds} s")
        pause.wait(every)
