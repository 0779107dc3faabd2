from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from polyray.core.clock import VirtualClock
from polyray.core.errors import Unavailable
from polyray.core.reconcile import Done, KeyedQueue, Loop
from support.wait import until


class Recorder:
    """A reconciler that does what the test says and remembers who ran when."""

    kind = "test"

    def __init__(self, act: Callable[[str], Done] = lambda key: Done(forget=True)) -> None:
        self.act = act
        self.runs: list[str] = []
        self.resyncs = 0
        self.to_resync: list[str] = []
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self.overlapped: set[str] = set()

    def pending(self) -> list[str]:
        self.resyncs += 1
        return list(self.to_resync)

    def reconcile(self, key: str) -> Done:
        with self._lock:
            self.runs.append(key)
            self._inside[key] += 1
            if self._inside[key] > 1:
                self.overlapped.add(key)
        try:
            return self.act(key)
        finally:
            with self._lock:
                self._inside[key] -= 1

    def count(self, key: str) -> int:
        with self._lock:
            return self.runs.count(key)


@contextmanager
def running(loop: Loop) -> Iterator[Loop]:
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def test_what_is_pending_at_the_start_is_looked_at_without_a_wake_up() -> None:
    recorder = Recorder()
    recorder.to_resync = ["a", "b"]
    with running(Loop(recorder)):
        until(lambda: recorder.count("a") == recorder.count("b") == 1)


def test_a_resync_finds_what_nobody_was_woken_for() -> None:
    clock, recorder = VirtualClock(), Recorder()
    with running(Loop(recorder, clock=clock, resync_seconds=15)) as loop:
        until(lambda: recorder.resyncs == 1)
        recorder.to_resync = ["lost"]
        loop.wake("other")
        until(lambda: recorder.count("other") == 1)
        assert recorder.count("lost") == 0
        clock.advance(15)
        loop.wake("other")
        until(lambda: recorder.count("lost") == 1)


def test_a_failing_key_backs_off_whoever_wakes_it_and_the_others_go_on() -> None:
    clock = VirtualClock()

    def act(key: str) -> Done:
        if key == "bad":
            raise OSError("the cloud is down")
        return Done()

    recorder = Recorder(act)
    with running(Loop(recorder, clock=clock, resync_seconds=1000)) as loop:
        loop.wake("bad")
        until(lambda: recorder.count("bad") == 1)
        for n in range(1, 6):
            loop.wake("bad")
            loop.wake("good")
            until(lambda n=n: recorder.count("good") == n)  # type: ignore[misc]
        assert recorder.count("bad") == 1
        clock.advance(0.7)
        loop.wake("good")
        until(lambda: recorder.count("bad") == 2)


def test_a_key_that_is_woken_while_it_runs_is_run_once_more() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def act(key: str) -> Done:
        if key == "a":
            inside.set()
            assert go_on.wait(10)
        return Done(forget=True)

    recorder = Recorder(act)
    with running(Loop(recorder, threads=3)) as loop:
        loop.wake("a")
        assert inside.wait(10)
        for _ in range(5):
            loop.wake("a")
        go_on.set()
        until(lambda: recorder.count("a") == 2)
        loop.wake("after")
        until(lambda: recorder.count("after") == 1)
        assert recorder.count("a") == 2
        assert not recorder.overlapped


def test_two_keys_run_in_parallel() -> None:
    together = threading.Barrier(2, timeout=10)

    def act(key: str) -> Done:
        together.wait()
        return Done(forget=True)

    recorder = Recorder(act)
    with running(Loop(recorder, threads=2)) as loop:
        loop.wake("a")
        loop.wake("b")
        until(lambda: sorted(recorder.runs) == ["a", "b"])


def test_one_key_never_runs_twice_at_once_however_often_it_is_woken() -> None:
    recorder = Recorder()
    with running(Loop(recorder, threads=4)) as loop:

        def wake_often() -> None:
            for key in "abab" * 100:
                loop.wake(key)

        wakers = [threading.Thread(target=wake_often) for _ in range(4)]
        for waker in wakers:
            waker.start()
        for waker in wakers:
            waker.join()
        loop.wake("last")
        until(lambda: recorder.count("last") == 1)
    assert not recorder.overlapped
    assert recorder.count("a") >= 1


def test_nothing_runs_while_the_loop_may_not_run() -> None:
    leading = threading.Event()
    recorder = Recorder()
    recorder.to_resync = ["a"]
    asked = threading.Event()

    def may_run() -> bool:
        asked.set()
        return leading.is_set()

    with running(Loop(recorder, may_run=may_run)) as loop:
        loop.wake("b")
        assert asked.wait(10)
        assert recorder.runs == []
        leading.set()
        loop.wake("b")
        until(lambda: recorder.count("a") == recorder.count("b") == 1)


def test_a_resync_that_fails_is_tried_again_at_the_next() -> None:
    clock = VirtualClock()

    class StoreIsDownOnce(Recorder):
        def pending(self) -> list[str]:
            super().pending()
            if self.resyncs == 1:
                raise OSError("locked")
            return ["a"]

    recorder = StoreIsDownOnce()
    with running(Loop(recorder, clock=clock, resync_seconds=5)) as loop:
        until(lambda: recorder.resyncs == 1)
        clock.advance(5)
        loop.wake("other")
        until(lambda: recorder.count("a") == 1)


def test_wakers_do_not_wait_for_a_slow_resync() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class SlowStore(Recorder):
        def pending(self) -> list[str]:
            inside.set()
            go_on.wait(10)
            return []

    recorder = SlowStore()
    with running(Loop(recorder)) as loop:
        assert inside.wait(10)
        woken = threading.Thread(target=loop.wake, args=("a",))
        woken.start()
        woken.join(5)
        assert not woken.is_alive()
        go_on.set()
        until(lambda: recorder.count("a") == 1)


def test_stopping_ends_every_thread_and_may_be_done_before_the_start() -> None:
    Loop(Recorder()).stop()
    loop = Loop(Recorder(), threads=3)
    with running(loop):
        names = {thread.name for thread in threading.enumerate()}
        assert {"test-0", "test-1", "test-2"} <= names
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-")]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_key_that_asks_to_be_looked_at_again_is(threads: int) -> None:
    clock = VirtualClock()
    recorder = Recorder(lambda key: Done(again_seconds=2) if key == "a" else Done(forget=True))
    with running(Loop(recorder, threads=threads, clock=clock)) as loop:
        loop.wake("a")
        until(lambda: recorder.count("a") == 1)
        clock.advance(2)
        loop.wake("b")
        until(lambda: recorder.count("a") == 2)


def test_what_did_not_answer_for_long_is_asked_again_within_seconds() -> None:
    queue, now = KeyedQueue(), 0.0
    queue.wake("key", now)
    for _ in range(12):
        assert queue.take(now) == "key"
        backoff = queue.failed("key", now, outage=True)
        now += backoff
    assert 4.0 <= backoff <= 6.0


def test_a_key_that_waits_for_an_answer_comes_by_itself() -> None:
    answers = iter([False, True])

    def ask(_: str) -> Done:
        if not next(answers):
            raise Unavailable("the core has not answered lately")
        return Done(forget=True)

    recorder = Recorder(ask)
    recorder.to_resync = ["a"]
    with running(Loop(recorder)):
        until(lambda: recorder.count("a") == 2)
