"""A keyed work queue and the loop that drains it.

Reconcilers are level-triggered: a wake-up says only *which* entity to look at, never what happened to
it, so wake-ups may be lost, doubled or merged freely. Per key the queue promises:

1. wake-ups merge: waking a key that waits already changes nothing but its due time;
2. one run at a time: a key that is woken while it runs is run once more afterwards;
3. back-off: a failing key waits 0.5 s, 1 s, 2 s ... up to a limit, with jitter; success resets it. What only
   does not answer now (`Unavailable`) has a lower limit: once it is back, nobody waits long;
4. resync: a key is looked at again after `resync_seconds` even if nobody wakes it, until forgotten.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

import structlog

from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import Unavailable

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Done:
    """What a run asks for: look again after `again_seconds` (the resync, if that is sooner), or never (`forget`)."""

    again_seconds: float | None = None
    forget: bool = False


class Reconciler(Protocol):
    """Brings one entity nearer to what is desired. Never sleeps; asks to be called again instead."""

    @property
    def kind(self) -> str: ...

    def pending(self) -> list[str]:
        """Return the keys that need looking at now (at start, and at every resync)."""

    def reconcile(self, key: str) -> Done: ...


@dataclass
class _Entry:
    #: Monotonic seconds from which the key may run; None while it runs and nobody has woken it since.
    due: float | None
    running: bool = False
    failures: int = 0
    #: The end of the back-off: no wake-up makes the key run before.
    not_before: float = float("-inf")


@dataclass
class KeyedQueue:
    """The pure part: which key may run, and when. Not thread-safe; `Loop` holds the lock."""

    resync_seconds: float = 15.0
    max_backoff_seconds: float = 30.0
    max_outage_backoff_seconds: float = 5.0
    rng: random.Random = field(default_factory=random.Random)
    _entries: dict[str, _Entry] = field(default_factory=dict)
    #: (due, key) of every key that does not run. A pair that is not as its entry says is out of date and is passed
    #: over: a key's due time changes by a new pair.
    _heap: list[tuple[float, str]] = field(default_factory=list)

    def wake(self, key: str, now: float, after_seconds: float = 0.0) -> None:
        due = now + after_seconds
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(None)
        self._set_due(key, entry, max(due if entry.due is None else min(entry.due, due), entry.not_before))

    def take(self, now: float) -> str | None:
        """Return the key that has been due longest, marked as running; None if there is none."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, key = heappop(self._heap)
        self._entries[key].running, self._entries[key].due = True, None
        return key

    def done(self, key: str, result: Done, now: float) -> None:
        entry = self._entries[key]
        entry.running, entry.failures, entry.not_before = False, 0, float("-inf")
        if result.forget and entry.due is None:
            del self._entries[key]
            return
        again = min(self.resync_seconds if result.again_seconds is None else result.again_seconds, self.resync_seconds)
        self._set_due(key, entry, now + again if entry.due is None else min(entry.due, now + again), anew=True)

    def failed(self, key: str, now: float, *, outage: bool = False) -> float:
        """Record a failed run and return the back-off in seconds. Wake-ups do not shorten it."""
        entry = self._entries[key]
        entry.running, entry.failures = False, entry.failures + 1
        limit = self.max_outage_backoff_seconds if outage else self.max_backoff_seconds
        backoff: float = min(0.5 * 2 ** min(entry.failures - 1, 16), limit)
        backoff *= self.rng.uniform(0.8, 1.2)
        entry.not_before = now + backoff
        self._set_due(key, entry, now + backoff, anew=True)
        return backoff

    def next_due(self) -> float | None:
        """Return the earliest monotonic time at which a key may run."""
        while self._heap:
            due, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and not entry.running and entry.due == due:
                return due
            heappop(self._heap)
        return None

    def __len__(self) -> int:
        return len(self._entries)

    def _set_due(self, key: str, entry: _Entry, due: float, *, anew: bool = False) -> None:
        """Note when a key may run; `anew` if it ran, and has no pair in the heap."""
        changed, entry.due = entry.due != due, due
        if not entry.running and (changed or anew):
            heappush(self._heap, (due, key))
            if len(self._heap) > 2 * len(self._entries) + 64:
                self._heap = [(e.due, k) for k, e in self._entries.items() if not e.running and e.due is not None]
                heapify(self._heap)


class Loop:
    """Runs one reconciler over its queue with a few threads."""

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        threads: int = 1,
        clock: Clock | None = None,
        resync_seconds: float = 15.0,
        may_run: Callable[[], bool] = lambda: True,
    ) -> None:
        self.reconciler = reconciler
        self._clock = clock or SystemClock()
        self._queue = KeyedQueue(resync_seconds=resync_seconds)
        self._resync_seconds = resync_seconds
        self._next_resync = 0.0
        self._may_run = may_run
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{reconciler.kind}-{n}", daemon=True) for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_seconds)

    def wake(self, key: str, after_seconds: float = 0.0) -> None:
        with self._changed:
            self._queue.wake(key, self._clock.monotonic(), after_seconds)
            self._changed.notify()

    def _run(self) -> None:
        while (key := self._next()) is not None:
            try:
                result = self.reconciler.reconcile(key)
            except Unavailable as error:
                with self._changed:
                    backoff = self._queue.failed(key, self._clock.monotonic(), outage=True)
                told = {"error": str(error), "retry_seconds": round(backoff, 1)}
                log.warning("reconcile_waits", kind=self.reconciler.kind, key=key, **told)
            except Exception:
                with self._changed:
                    backoff = self._queue.failed(key, self._clock.monotonic())
                log.exception("reconcile_failed", kind=self.reconciler.kind, key=key, retry_seconds=round(backoff, 1))
            else:
                with self._changed:
                    self._queue.done(key, result, self._clock.monotonic())
                    self._changed.notify()

    def _next(self) -> str | None:
        """Block until a key may run; return None when the loop stops."""
        while not self._stopping:
            may_run = self._may_run()
            if may_run:
                self._resync()
            with self._changed:
                now = self._clock.monotonic()
                if may_run and not self._stopping and (key := self._queue.take(now)) is not None:
                    return key
                due = self._queue.next_due()
                wait = min(due if due is not None else self._next_resync, self._next_resync) - now
                if not self._stopping:
                    self._changed.wait(min(max(wait, 0.01), 1.0) if may_run else 1.0)
        return None

    def _resync(self) -> None:
        """Wake what is pending, once each `resync_seconds`; asked without the lock, so that wakers never wait."""
        with self._changed:
            now = self._clock.monotonic()
            if now < self._next_resync:
                return
            self._next_resync = now + self._resync_seconds
        try:
            pending = self.reconciler.pending()
        except Exception:
            log.exception("resync_failed", kind=self.reconciler.kind)
            return
        with self._changed:
            for key in pending:
                self._queue.wake(key, now)
            self._changed.notify_all()
