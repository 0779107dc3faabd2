"""A lock that is had in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A mutual exclusion that passes to whoever has waited longest: nobody is overtaken, however busy it is."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        #: A gate for each that waits, opened when its turn comes.
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout: float) -> bool:
        """Take the lock; return whether it was had within `timeout` seconds."""
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout):
            return True
        with self._mutex:
            if gate not in self._waiting:
                return True  # it was handed over at this very moment
            self._waiting.remove(gate)
            return False

    def release(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False
