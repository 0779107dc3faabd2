"""The four promises of the keyed queue, held against a model under any order of calls."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from polyray.core.clock import VirtualClock
from polyray.core.reconcile import Done, KeyedQueue

KEY = st.sampled_from(["a", "b", "c"])
RESYNC_SECONDS = 15.0
MAX_BACKOFF_SECONDS = 30.0


@dataclass
class Known:
    """What the model knows of one key."""

    #: The latest time at which it must be runnable.
    latest: float
    #: The earliest time at which it may run.
    earliest: float = float("-inf")
    running: bool = False
    woken_while_running: bool = False
    failures: int = 0


class Promises(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16))
    def start(self, seed: int) -> None:
        self.clock = VirtualClock()
        self.queue = KeyedQueue(RESYNC_SECONDS, MAX_BACKOFF_SECONDS, rng=random.Random(seed))
        self.known: dict[str, Known] = {}

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @rule(key=KEY, after=st.sampled_from([0.0, 0.5, 5.0, 100.0]))
    def wake(self, key: str, after: float) -> None:
        self.queue.wake(key, self.now, after)
        due = self.now + after
        known = self.known.setdefault(key, Known(latest=due))
        if known.running:
            known.latest = min(known.latest, due) if known.woken_while_running else due
            known.woken_while_running = True
        else:
            known.latest = max(min(known.latest, due), known.earliest)

    @rule(seconds=st.sampled_from([0.1, 0.4, 0.7, 3.0, 14.9, 15.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now)
        runnable = {k for k, known in self.known.items() if not known.running and known.latest <= self.now}
        if key is None:
            assert not runnable, "a key that is due is handed out"
            return
        known = self.known[key]
        assert not known.running, "one key never runs twice at once"
        assert known.earliest <= self.now, "a failing key waits, whoever wakes it"
        assert known.latest == min(self.known[k].latest for k in runnable), "the longest due comes first"
        known.running, known.woken_while_running = True, False

    def running(self) -> list[str]:
        return sorted(key for key, known in self.known.items() if known.running)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), again=st.sampled_from([None, 0.0, 1.0, 100.0]), forget=st.booleans())
    def done(self, data: st.DataObject, again: float | None, forget: bool) -> None:
        key = data.draw(st.sampled_from(self.running()))
        self.queue.done(key, Done(again, forget), self.now)
        known = self.known[key]
        if forget and not known.woken_while_running:
            del self.known[key]
            return
        due = self.now + min(RESYNC_SECONDS if again is None else again, RESYNC_SECONDS)
        latest = min(due, known.latest) if known.woken_while_running else due
        self.known[key] = Known(latest)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.running()))
        backoff = self.queue.failed(key, self.now)
        known = self.known[key]
        known.failures += 1
        nominal = min(0.5 * 2 ** (known.failures - 1), MAX_BACKOFF_SECONDS)
        assert 0.8 * nominal <= backoff <= 1.2 * nominal
        known.running = False
        known.earliest = known.latest = self.now + backoff

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.known)

    @invariant()
    def every_key_is_looked_at_again_in_bounded_time(self) -> None:
        if hasattr(self, "queue"):
            waiting = [known.latest for known in self.known.values() if not known.running]
            assert self.queue.next_due() == min(waiting, default=None)


TestPromises = Promises.TestCase
